// The host entry points of the NVFP4 kernels: checked arguments in, launches on the stream out.
#pragma once

#include "nvfp4_params.hpp"

namespace tilewright::cuda {

void launch_quantize_nvfp4(const QuantizeNvfp4Params& params, Stream stream);
void launch_dequantize_nvfp4(const DequantizeNvfp4Params& params, Stream stream);
void launch_convert_scales(const ConvertScalesParams& params, Stream stream);
void launch_prepack_nvfp4_weight(const PrepackWeightParams& params, Stream stream);
void launch_unpack_nvfp4_weight(const UnpackWeightParams& params, Stream stream);

}  // namespace tilewright::cuda
