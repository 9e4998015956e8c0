// Compares results with the float64 oracle's, within bounds that depend on the dtype.
#pragma once

#include <string>

#include "reference/attention.hpp"

namespace tilewright::cli {

// A case's expected results, and how far a kernel's may be from them.
struct Expected {
  reference::AttentionResult exact;
  double rel_fro_limit = 0;
  double max_abs_limit = 0;
};

struct CheckResult {
  double rel_fro_error = 0;  // of O
  double max_abs_error = 0;  // of O
  double lse_max_abs_error = 0;
  std::string failure;  // what is wrong; empty if the result passes
};

// Computes a problem on host tensors by the oracle. The limits are
//   bf16  3e-3 in relative Frobenius norm; twice the largest error of the BF16-rounded reference
//   fp16  5e-4; twice the largest error of the FP16-rounded reference
//   fp32  1e-5; 1e-4 of the largest output
Expected expect(const AttentionTensors& tensors, const AttentionOptions& options);

// Compares host tensors: o within the limits, and lse within 1e-3 absolute.
CheckResult check(const ConstTensorView& o, const ConstTensorView& lse, const Expected& expected);

}  // namespace tilewright::cli
