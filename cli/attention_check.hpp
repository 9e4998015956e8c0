// What attention's commands expect of a result.
#pragma once

#include <functional>

#include "cli/case.hpp"
#include "cli/device_memory.hpp"
#include "reference/attention.hpp"

namespace tilewright::cli {

// What the oracle gives, and how far O and the LSE may be from it.
struct ExpectedAttention {
  reference::AttentionResult exact;
  double rel_fro_limit = 0;
  double max_abs_limit = 0;
  double lse_limit = 0;
};

// The limits of O are, by the dtype of q,
//   bf16  3e-3 in relative Frobenius norm; twice the largest error of the BF16-rounded reference
//   fp16  5e-4; twice the largest error of the FP16-rounded reference
//   fp32  1e-5; 1e-4 of the largest output
//   e4m3  4.5e-2; twice the largest error of the reference that rounds weights to E4M3, O to BF16
// That of the LSE is 1e-5 and 2e-6 of the largest, as FP32 scores and sums allow.
ExpectedAttention expect_attention(
    DType dtype, const std::function<reference::AttentionResult(reference::Rounding)>& oracle);

// Of a result that is in host memory.
CheckResult check_attention(const Output& o, const Output& lse, const ExpectedAttention& expected);

}  // namespace tilewright::cli
