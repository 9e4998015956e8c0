// The GPU kernels of gemm_nvfp4, for its table.
#pragma once

#include "ops/gemm_nvfp4/params.hpp"
#include "tilewright/gemm_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const GemmNvfp4Facts& facts);

namespace cuda {

// Queues the kernel on the current device. Its arguments have been checked.
void launch_nvfp4_simple(const GemmNvfp4Params& params, Stream stream);

// The production kernel's row of the table, with its variants.
Kernel<GemmNvfp4> nvfp4_kernel();

}  // namespace cuda
}  // namespace tilewright
