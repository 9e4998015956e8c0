// The GPU kernels of gemm_bf16, for its table.
#pragma once

#include "ops/gemm_bf16/params.hpp"
#include "tilewright/gemm_kernels.hpp"

namespace tilewright::cuda {

// Each queues a kernel on the current device. Its arguments have been checked.
void launch_gemm_naive(const GemmBf16Params& params, Stream stream);
void launch_gemm_tiled(const GemmBf16Params& params, Stream stream);
void launch_gemm_swizzled(const GemmBf16Params& params, Stream stream);

}  // namespace tilewright::cuda
