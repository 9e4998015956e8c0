// The test oracle: attention in float64, in loops too plain to be wrong.
#pragma once

#include <vector>

#include "tilewright/attention.hpp"

namespace tilewright::reference {

// The result of an attention problem, dense: o is (B, Nq, H, D), lse is (B, H, Nq).
struct AttentionResult {
  std::vector<double> o;
  std::vector<double> lse;
};

// How the reference rounds on the way; `exact` is the oracle.
enum class Rounding {
  exact,
  // The unavoidable error of a kernel that feeds BF16 tensor cores: exp(s - m) is rounded to BF16
  // before it meets V, and O is rounded to BF16. All else in float64.
  bf16,
};

// Computes the problem on host tensors (tensors.o is read for its shape only, tensors.lse not at
// all). The semantics are those of tilewright::attention().
AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding = Rounding::exact);

}  // namespace tilewright::reference
