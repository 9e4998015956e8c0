// The test oracle of tilewright/gemm_nvfp4.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewright/gemm_nvfp4.hpp"

namespace tilewright::reference {

// C in float64, dense (L, M, N), before it is rounded to c's dtype.
struct GemmResult {
  std::vector<double> c;
  std::vector<double> magnitude;  // the same with the absolute value of every term
};

// Computes the problem on host tensors, b being codes; nothing is written to c.
GemmResult gemm_nvfp4(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options);

// A B^T of (M, K) and (N, K), dense (M, N).
std::vector<double> gemm(const ConstTensorView& a, const ConstTensorView& b);

// The sums over k in integers, of codes and scales that hold no NaN: in units of 2^-20, (L, M, N).
// Both operands are NVFP4; 2^20 terms or fewer cannot overflow.
std::vector<std::int64_t> exact_sums(const GemmNvfp4Tensors& tensors,
                                     const GemmNvfp4Options& options);

}  // namespace tilewright::reference
