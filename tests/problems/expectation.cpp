#include "problems/expectation.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>

#include "problems/row_results.hpp"

namespace tilewright::test {
namespace {

struct Expected {
  reference::AttentionResult exact;
  double max_abs_limit = 0;
};

reference::AttentionResult result_of(const Problem& problem, HostTensors& tensors,
                                     reference::Rounding rounding) {
  return reference::attention(tensors.views(), options_of(problem, "auto"), rounding);
}

double max_abs_limit_of(const Problem& problem, HostTensors& tensors,
                        const reference::AttentionResult& exact) {
  return max_abs_limit(exact.o,
                       result_of(problem, tensors, precision_of(problem.dtype).rounding).o);
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

}  // namespace

std::optional<std::int64_t> packed_end_of(const Problem& problem) {
  return problem.q_lens.empty()
             ? std::nullopt
             : std::optional(
                   std::accumulate(problem.q_lens.begin(), problem.q_lens.end(), std::int64_t{0}));
}

void expect_right(const Problem& problem, const HostTensors& result) {
  const Expected& expected = expected_of(problem);
  expect_near(problem, result, expected.exact, expected.max_abs_limit);
}

void expect_near(const Problem& problem, const HostTensors& result,
                 const reference::AttentionResult& exact, double max_abs_limit) {
  const std::optional<std::int64_t> packed_end = packed_end_of(problem);
  const auto o = norms_of("o", result.o, exact.o, packed_end);
  EXPECT_LE(o.rel_fro, precision_of(problem.dtype).max_rel_fro);
  EXPECT_LE(o.max_abs, max_abs_limit);
  const auto& [exact_o, lse, row_max, row_sum] = exact;
  const double score_error = problem.inputs == Inputs::constant ? kAlikeScoreError : kScoreError;
  expect_statistics("lse", result.lse, {lse, lse, score_error}, packed_end);
  if (problem.unnormalized) {
    expect_statistics("row_max", *result.row_max, {row_max, row_max, score_error}, packed_end);
    expect_statistics("row_sum", *result.row_sum, {row_sum, row_max, score_error, true},
                      packed_end);
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
