#include "problems/row_results.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "problems/problem.hpp"

namespace tilewright::test {
namespace {

constexpr double kFp32Error = 1e-5;       // of the largest output
constexpr double kStatisticError = 1e-5;  // beside that of scores

// Are the rows from `end` on, of a packed (T, H, D) or (H, T) tensor, as they were?
bool rest_is_unwritten(const ConstTensorView& t, std::int64_t end) {
  const int tokens = t.rank == 3 ? 0 : 1;
  const int outer = 1 - tokens;
  const std::int64_t row_size = t.rank == 3 ? t.shape[2] : 1;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(t.dtype));
  for (std::int64_t n = end; n < t.shape[tokens]; ++n) {
    for (std::int64_t h = 0; h < t.shape[outer]; ++h) {
      const auto* const row = static_cast<const std::byte*>(t.data) +
                              (n * t.stride[tokens] + h * t.stride[outer]) * element_bytes;
      if (std::count(row, row + row_size * element_bytes, kUnwritten) != row_size * element_bytes) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return {reference::Rounding::bf16, 3e-3};
    case DType::fp16:
      return {reference::Rounding::fp16, 5e-4};
    default:
      return {reference::Rounding::exact, kFp32Error};
  }
}

double max_abs_limit(const std::vector<double>& exact, const std::vector<double>& rounded) {
  double largest = 0;
  double largest_error = 0;
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    if (!std::isnan(rounded[i])) {  // a row of no sequence
      largest = std::max(largest, std::abs(exact[i]));
      largest_error = std::max(largest_error, std::abs(rounded[i] - exact[i]));
    }
  }
  return 2 * largest_error + kFp32Error * largest;
}

void expect_rest_is_unwritten(const char* name, const reference::HostTensor& actual,
                              std::optional<std::int64_t> packed_end) {
  EXPECT_TRUE(reference::gaps_hold(actual, kUnwritten)) << name;
  EXPECT_TRUE(!packed_end || rest_is_unwritten(actual.view(), *packed_end)) << name;
}

reference::ErrorNorms norms_of(const char* name, const reference::HostTensor& actual,
                               const std::vector<double>& expected,
                               std::optional<std::int64_t> packed_end) {
  const reference::ErrorNorms norms = reference::compare(actual.view(), expected);
  EXPECT_TRUE(norms.same_specials) << name;
  expect_rest_is_unwritten(name, actual, packed_end);
  return norms;
}

void expect_statistics(const char* name, const reference::HostTensor& actual,
                       const ExpectedStatistics& expected, std::optional<std::int64_t> packed_end) {
  const auto& [values, scores, score_error, is_relative] = expected;
  norms_of(name, actual, values, packed_end);
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error =
        std::abs(reference::load(actual.view(), static_cast<std::int64_t>(i)) - values[i]);
    const double limit = kStatisticError + score_error * std::abs(scores[i]);
    const double share = error / (limit * (is_relative ? values[i] : 1.0));
    worst = std::isfinite(share) ? std::max(worst, share) : worst;
  }
  EXPECT_LE(worst, 1.0) << name << ": the largest error over its limit";
}

}  // namespace tilewright::test
