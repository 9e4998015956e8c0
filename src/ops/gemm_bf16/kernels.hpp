// The kernels of gemm_bf16 on GPUs, as its table has them.
#pragma once

#include "ops/gemm_bf16/params.hpp"
#include "tilewright/gemm_kernels.hpp"

namespace tilewright::cuda {

// Queue a kernel, with checked arguments, on the current device.
void launch_gemm_naive(const GemmBf16Params& params, Stream stream);
void launch_gemm_tiled(const GemmBf16Params& params, Stream stream);
void launch_gemm_swizzled(const GemmBf16Params& params, Stream stream);

}  // namespace tilewright::cuda
