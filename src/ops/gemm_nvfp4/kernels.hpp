// For rows of the table of gemm_nvfp4 that a kernel has in its own folder.
#pragma once

#include "ops/gemm_nvfp4/params.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const GemmNvfp4Facts& facts);

namespace cuda {

// The production kernel's row of the table, with its variants.
Kernel<GemmNvfp4> nvfp4_kernel();

}  // namespace cuda
}  // namespace tilewright
