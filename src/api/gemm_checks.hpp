// The checks of the calls of tilewright/gemm.hpp, beside those of tensor_checks.hpp.
#pragma once

#include <cstdint>

#include "tensor_checks.hpp"
#include "tilewright/gemm.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Everything that can be said of a call before a kernel is chosen; looks at no data.
void check_arguments(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);
void check_arguments(const GemmBf16Tensors& tensors);

// Addresses and strides against what the kernel's loads and stores assume.
void check_alignment(const GemmNvfp4Tensors& tensors, const KernelInfo& kernel);
void check_alignment(const GemmBf16Tensors& tensors, const KernelInfo& kernel);

// The sizes of tensors that check_arguments() has passed.
GemmProblem problem_of(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);
GemmProblem problem_of(const GemmBf16Tensors& tensors);

}  // namespace tilewright
