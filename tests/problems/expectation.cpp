#include "problems/expectation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

namespace tilewright::test {
namespace {

constexpr double kMaxLseError = 1e-3;
constexpr double kMaxRowSumError = 1e-3;
constexpr double kFp32Error = 1e-5;  // of the largest output

// What rounding to a dtype does to a result.
struct Precision {
  reference::Rounding rounding;
  double max_rel_fro;
};

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

struct Expected {
  reference::AttentionResult exact;
  double max_abs_limit = 0;
};

Expected expect(const Problem& problem) {
  HostTensors tensors = make_tensors(problem);
  const AttentionOptions options = options_of(problem, "auto");
  Expected expected{.exact = reference::attention(tensors.views(), options)};
  const auto rounded =
      reference::attention(tensors.views(), options, precision_of(problem.dtype).rounding);
  double largest = 0;
  double largest_error = 0;
  for (std::size_t i = 0; i < rounded.o.size(); ++i) {
    if (!std::isnan(rounded.o[i])) {  // a row of no sequence
      largest = std::max(largest, std::abs(expected.exact.o[i]));
      largest_error = std::max(largest_error, std::abs(rounded.o[i] - expected.exact.o[i]));
    }
  }
  expected.max_abs_limit = 2 * largest_error + kFp32Error * largest;
  return expected;
}

// Computed once per problem and kept: the kernels share it.
const Expected& expected_of(const Problem& problem) {
  static std::map<std::string, Expected> cache;
  std::ostringstream text;
  text << problem;
  const auto found = cache.find(text.str());
  return found != cache.end() ? found->second
                              : cache.emplace(text.str(), expect(problem)).first->second;
}

// The norms of a result that has NaN and infinities where it must.
reference::ErrorNorms norms_of(const char* name, const reference::HostTensor& actual,
                               const std::vector<double>& expected) {
  const reference::ErrorNorms norms = reference::compare(actual.view(), expected);
  EXPECT_TRUE(norms.same_specials) << name;
  EXPECT_TRUE(reference::gaps_hold(actual, kUnwritten)) << name;
  return norms;
}

}  // namespace

void expect_right(const Problem& problem, const HostTensors& result) {
  const Expected& expected = expected_of(problem);
  const auto o = norms_of("o", result.o, expected.exact.o);
  EXPECT_LE(o.rel_fro, precision_of(problem.dtype).max_rel_fro);
  EXPECT_LE(o.max_abs, expected.max_abs_limit);
  EXPECT_LE(norms_of("lse", result.lse, expected.exact.lse).max_abs, kMaxLseError);
  if (problem.unnormalized) {
    EXPECT_LE(norms_of("row_max", *result.row_max, expected.exact.row_max).max_abs, kMaxLseError);
    EXPECT_LE(norms_of("row_sum", *result.row_sum, expected.exact.row_sum).rel_fro,
              kMaxRowSumError);
  }
}

void expect_same_bits(HostTensors& a, HostTensors& b) {
  const auto outputs_a = a.outputs();
  const auto outputs_b = b.outputs();
  for (std::size_t i = 0; i < outputs_a.size(); ++i) {
    EXPECT_EQ(std::memcmp(outputs_a[i]->data(), outputs_b[i]->data(), outputs_a[i]->bytes()), 0)
        << "output " << i << " differs";
  }
}

}  // namespace tilewright::test
