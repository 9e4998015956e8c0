#include "problems/expectation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

namespace tilewright::test {
namespace {

constexpr double kFp32Error = 1e-5;        // of the largest output
constexpr double kScoreError = 2e-6;       // of a score: tensor cores cut off up to 16 sums
constexpr double kAlikeScoreError = 4e-6;  // of one whose terms are equal: additions round alike
constexpr double kStatisticError = 1e-5;   // beside that of scores

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

reference::AttentionResult result_of(const Problem& problem, HostTensors& tensors,
                                     reference::Rounding rounding) {
  return reference::attention(tensors.views(), options_of(problem, "auto"), rounding);
}

// Twice the largest error of the reference that rounds what the dtype makes it round, and FP32
// arithmetic's own.
double max_abs_limit_of(const Problem& problem, HostTensors& tensors,
                        const reference::AttentionResult& exact) {
  const auto rounded = result_of(problem, tensors, precision_of(problem.dtype).rounding);
  double largest = 0;
  double largest_error = 0;
  for (std::size_t i = 0; i < rounded.o.size(); ++i) {
    if (!std::isnan(rounded.o[i])) {  // a row of no sequence
      largest = std::max(largest, std::abs(exact.o[i]));
      largest_error = std::max(largest_error, std::abs(rounded.o[i] - exact.o[i]));
    }
  }
  return 2 * largest_error + kFp32Error * largest;
}

// Where specials leave few rows to be compared the limit is that of all rows: the fewer there are,
// the smaller is the largest error of them.
Expected expect(const Problem& problem) {
  HostTensors tensors = make_tensors(problem);
  Expected expected{.exact = result_of(problem, tensors, reference::Rounding::exact)};
  if (problem.specials.empty()) {
    expected.max_abs_limit = max_abs_limit_of(problem, tensors, expected.exact);
    return expected;
  }
  Problem plain = problem;
  plain.specials.clear();
  tensors = make_tensors(plain);
  expected.max_abs_limit =
      max_abs_limit_of(plain, tensors, result_of(plain, tensors, reference::Rounding::exact));
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

// Are the rows behind the last sequence, of a packed (T, H, D) or (H, T) tensor, as they were?
bool rest_is_unwritten(const ConstTensorView& t, const std::vector<int>& lengths) {
  const int tokens = t.rank == 3 ? 0 : 1;
  const int outer = 1 - tokens;
  const std::int64_t end = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
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

// The norms of an output, which has NaN and infinities, and is unwritten, where it must.
reference::ErrorNorms norms_of(const char* name, const Problem& problem,
                               const reference::HostTensor& actual,
                               const std::vector<double>& expected) {
  const reference::ErrorNorms norms = reference::compare(actual.view(), expected);
  EXPECT_TRUE(norms.same_specials) << name;
  EXPECT_TRUE(reference::gaps_hold(actual, kUnwritten)) << name;
  EXPECT_TRUE(problem.q_lens.empty() || rest_is_unwritten(actual.view(), problem.q_lens)) << name;
  return norms;
}

// A row's statistics, dense, each within what FP32 scores of the size of `scores` leave it. That of
// row_sum is a share of itself: it is the exponential of a difference of scores.
void expect_statistics(const char* name, const Problem& problem,
                       const reference::HostTensor& actual, const std::vector<double>& expected,
                       const std::vector<double>& scores, bool is_relative) {
  norms_of(name, problem, actual, expected);
  const double score_error = problem.inputs == Inputs::constant ? kAlikeScoreError : kScoreError;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error =
        std::abs(reference::load(actual.view(), static_cast<std::int64_t>(i)) - expected[i]);
    const double limit = kStatisticError + score_error * std::abs(scores[i]);
    const double share = error / (limit * (is_relative ? expected[i] : 1.0));
    worst = std::isfinite(share) ? std::max(worst, share) : worst;
  }
  EXPECT_LE(worst, 1.0) << name << ": the largest error over its limit";
}

}  // namespace

void expect_right(const Problem& problem, const HostTensors& result) {
  const Expected& expected = expected_of(problem);
  const auto o = norms_of("o", problem, result.o, expected.exact.o);
  EXPECT_LE(o.rel_fro, precision_of(problem.dtype).max_rel_fro);
  EXPECT_LE(o.max_abs, expected.max_abs_limit);
  const auto& [exact_o, lse, row_max, row_sum] = expected.exact;
  expect_statistics("lse", problem, result.lse, lse, lse, false);
  if (problem.unnormalized) {
    expect_statistics("row_max", problem, *result.row_max, row_max, row_max, false);
    expect_statistics("row_sum", problem, *result.row_sum, row_sum, row_max, true);
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
