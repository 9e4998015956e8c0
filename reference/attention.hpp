// The test oracle: attention in float64, in loops too plain to be wrong.
#pragma once

#include <vector>

#include "tilewright/attention.hpp"

namespace tilewright::reference {

// The result of an attention problem, dense and in the layouts of the tensors: o (B, Nq, H, Dv) or
// packed (Tq, H, Dv); lse, row_max and row_sum (B, H, Nq) or packed (H, Tq). NaN in the rows that
// belong to no sequence. o is normalised unless the tensors have row_max and row_sum.
struct AttentionResult {
  std::vector<double> o;
  std::vector<double> lse;
  std::vector<double> row_max;
  std::vector<double> row_sum;
};

// How the reference rounds on the way; `exact` is the oracle. The others have the unavoidable error
// of a kernel that feeds tensor cores: exp(s - m) is rounded before it meets V, and a normalised O
// is. All else in float64. With e4m3, exp(s - m) * 2^8 is rounded to E4M3, and O to the other type.
enum class Rounding { exact, bf16, fp16, e4m3_bf16, e4m3_fp16 };

// Computes the problem on host tensors. The semantics are those of tilewright::attention(); of the
// outputs only row_max is looked at, for its presence.
AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding = Rounding::exact);

}  // namespace tilewright::reference
