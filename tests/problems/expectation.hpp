// What a problem must give, and how near a result must come to it.
#pragma once

#include <cstdint>
#include <optional>

#include "problems/problem.hpp"
#include "reference/attention.hpp"

namespace tilewright::test {

// Expects outputs near the float64 oracle's:
//   o            relative Frobenius error of at most 3e-3 (BF16), 5e-4 (FP16) or 1e-5 (FP32);
//                largest error at most twice that of the reference that rounds what the dtype makes
//                it round, and 1e-5 of the largest output for FP32 arithmetic's own
//   lse, row_max within 1e-5 + 2e-6 |lse|, or |row_max|: what FP32 scores leave
//   row_sum      within a share of itself of 1e-5 + 2e-6 |row_max|
//                (4e-6 in place of 2e-6 where all inputs are equal)
// NaN and infinities in the same places, where rows that belong to no sequence, and all bytes
// between the rows, are as make_tensors() left them.
void expect_right(const Problem& problem, const HostTensors& result);

// The same, where the oracle's results and the limit of the largest error are known.
void expect_near(const Problem& problem, const HostTensors& result,
                 const reference::AttentionResult& exact, double max_abs_limit);

// The end of the last packed sequence, where queries are packed.
std::optional<std::int64_t> packed_end_of(const Problem& problem);

// Expects the same bits in all outputs.
void expect_same_bits(HostTensors& a, HostTensors& b);

}  // namespace tilewright::test
