#pragma once

#include "nvfp4_params.hpp"

namespace tilewright::cpu {

void quantize_nvfp4(const QuantizeNvfp4Params& params);
void dequantize_nvfp4(const DequantizeNvfp4Params& params);
void convert_scales(const ConvertScalesParams& params);

}  // namespace tilewright::cpu
