// The checks of a call of gemm_nvfp4(), beside those of tensor_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/tensor_checks.hpp"
#include "tilewright/gemm_kernels.hpp"

namespace tilewright {

// Everything that can be said of a call before a kernel is chosen; looks at no data.
void check_arguments(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);

// Addresses and strides against what the kernel's loads and stores assume.
void check_alignment(const GemmNvfp4Tensors& tensors, const KernelInfo& kernel);

// The sizes of tensors that check_arguments() has passed.
GemmNvfp4Problem problem_of(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);

}  // namespace tilewright
