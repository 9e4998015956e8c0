// The checks of a call of gemm_nvfp4(), besides those of tensor_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/tensor_checks.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const GemmNvfp4Tensors& tensors, const KernelInfo& kernel);

// The problem that tensors pose; check_arguments() has passed them.
GemmNvfp4Problem problem_of(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);

}  // namespace tilewright
