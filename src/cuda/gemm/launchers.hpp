// The host entry points of matrix products: checked arguments in, launches on the stream out.
#pragma once

#include "gemm_params.hpp"

namespace tilewright::cuda {

void launch_gemm_naive(const GemmBf16Params& params, Stream stream);
void launch_gemm_tiled(const GemmBf16Params& params, Stream stream);
void launch_gemm_swizzled(const GemmBf16Params& params, Stream stream);
void launch_nvfp4_simple(const GemmNvfp4Params& params, Stream stream);
void launch_nvfp4(const GemmNvfp4Params& params, Stream stream);

}  // namespace tilewright::cuda
