// How near the results of attention operations must come to the float64 oracle's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::test {

inline constexpr double kScoreError = 2e-6;       // of a score: tensor cores cut off up to 16 sums
inline constexpr double kAlikeScoreError = 4e-6;  // of one whose terms are equal: all round alike

// What rounding to a dtype does to a result.
struct Precision {
  reference::Rounding rounding;
  double max_rel_fro;
};

Precision precision_of(DType dtype);

// Twice the largest error of the reference that rounds what the dtype makes it round, and FP32
// arithmetic's own.
double max_abs_limit(const std::vector<double>& exact, const std::vector<double>& rounded);

// Expects gaps between elements, and rows of a packed tensor from `packed_end` on, unwritten.
void expect_rest_is_unwritten(const char* name, const reference::HostTensor& actual,
                              std::optional<std::int64_t> packed_end);

// The norms of an output. Expects NaN and infinities where they must be, and the rest unwritten.
reference::ErrorNorms norms_of(const char* name, const reference::HostTensor& actual,
                               const std::vector<double>& expected,
                               std::optional<std::int64_t> packed_end);

// Statistics of rows.
struct ExpectedStatistics {
  const std::vector<double>& values;
  const std::vector<double>& scores;  // which the limits are a share of
  double score_error = kScoreError;
  bool is_relative = false;  // the limit is a share of the value, the exponential of scores
};

// Expects dense statistics, each within what FP32 scores leave it.
void expect_statistics(const char* name, const reference::HostTensor& actual,
                       const ExpectedStatistics& expected, std::optional<std::int64_t> packed_end);

}  // namespace tilewright::test
