// GEMMs of BF16 matrices: the steps that lead to gemm_nvfp4() (docs/worklog/gemm-ladder.md).
#pragma once

#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// C = A B^T of a (M, K), b (N, K) and c (M, N), all BF16 and on one GPU. N is a multiple of 16 and
// K of 64. Row strides are free.
struct GemmBf16Tensors {
  ConstTensorView a;
  ConstTensorView b;
  TensorView c;
};

struct GemmBf16Options {
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// Sums are in FP32 and rounded once. It needs no workspace. All else is as in gemm_nvfp4().
void gemm_bf16(const GemmBf16Tensors& tensors, const GemmBf16Options& options = {},
               Stream stream = nullptr);

}  // namespace tilewright
