// The kernels of gemm_nvfp4 on GPUs, as its table has them.
#pragma once

#include "ops/gemm_nvfp4/params.hpp"
#include "tilewright/gemm_kernels.hpp"

namespace tilewright {

// What a kernel's facts ask for, in words.
std::vector<Limit> limits_of(const GemmNvfp4Facts& facts);

namespace cuda {

// Queues the kernel, with checked arguments, on the current device.
void launch_nvfp4_simple(const GemmNvfp4Params& params, Stream stream);

// The production kernel's row, its variants included.
Kernel<GemmNvfp4> nvfp4_kernel();

}  // namespace cuda
}  // namespace tilewright
