#include "problems/kvcache_expectation.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

#include "problems/row_results.hpp"
#include "reference/attention_with_kvcache.hpp"

namespace tilewright::test {
namespace {

struct Expected {
  reference::AttentionResult exact;
  double max_abs_limit = 0;
};

// E4M3 queries are computed with as BF16 ones, which have all their values.
Precision precision_of_output(const KvCacheProblem& problem) {
  return precision_of(problem.dtype == DType::e4m3 ? DType::bf16 : problem.dtype);
}

Expected expect(const KvCacheProblem& problem) {
  KvCacheHostTensors tensors = make_tensors(problem);
  const auto result_of = [&](reference::Rounding rounding) {
    return reference::attention_with_kvcache(tensors.views(), options_of(problem, "auto"),
                                             rounding);
  };
  Expected expected{.exact = result_of(reference::Rounding::exact)};
  expected.max_abs_limit =
      max_abs_limit(expected.exact.o, result_of(precision_of_output(problem).rounding).o);
  return expected;
}

// Computed once per problem and kept: the kernels share it.
const Expected& expected_of(const KvCacheProblem& problem) {
  static std::map<std::string, Expected> cache;
  std::ostringstream text;
  text << problem;
  const auto found = cache.find(text.str());
  return found != cache.end() ? found->second
                              : cache.emplace(text.str(), expect(problem)).first->second;
}

}  // namespace

void expect_right(const KvCacheProblem& problem, const KvCacheHostTensors& result) {
  const Expected& expected = expected_of(problem);
  std::optional<std::int64_t> packed_end;
  if (problem.packed) {
    packed_end = std::accumulate(problem.q_lens.begin(), problem.q_lens.end(), std::int64_t{0});
  }
  const auto o = norms_of("o", result.o, expected.exact.o, packed_end);
  EXPECT_LE(o.rel_fro, precision_of_output(problem).max_rel_fro);
  EXPECT_LE(o.max_abs, expected.max_abs_limit);
  const auto& [exact_o, lse, row_max, row_sum] = expected.exact;
  expect_statistics("lse", result.lse, {.values = lse, .scores = lse}, packed_end);
  if (problem.unnormalized) {
    expect_statistics("row_max", *result.row_max, {.values = row_max, .scores = row_max},
                      packed_end);
    expect_statistics("row_sum", *result.row_sum,
                      {.values = row_sum, .scores = row_max, .is_relative = true}, packed_end);
  }
  KvCacheHostTensors appended = make_tensors(problem);
  reference::append_new_rows(appended.views());
  EXPECT_TRUE(same_bytes(appended.caches, result.caches)) << "the caches";
}

void expect_same_bits(KvCacheHostTensors& a, KvCacheHostTensors& b, bool with_caches) {
  const auto outputs_a = a.outputs();
  const auto outputs_b = b.outputs();
  const std::size_t count = outputs_a.size() - (with_caches ? 0 : 1);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(same_bytes(*outputs_a[i], *outputs_b[i])) << "output " << i << " differs";
  }
}

}  // namespace tilewright::test
