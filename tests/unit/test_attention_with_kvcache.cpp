// The CPU backend's attention over KV caches, on the problems that GPU kernels are held against.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "problems/kvcache_expectation.hpp"
#include "problems/kvcache_forms.hpp"
#include "problems/kvcache_problem_sets.hpp"
#include "ran.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright::test {
namespace {

KvCacheChoices cpu_choices() { return choices_of(*find_kernel<AttentionWithKvCache>("cpu")); }

void run_on_cpu(const KvCacheProblem& problem, KvCacheHostTensors& tensors) {
  attention_with_kvcache(tensors.views(), options_of(problem, "cpu"));
}

void check_problem(const KvCacheProblem& problem) {
  SCOPED_TRACE(testing::Message() << problem);
  KvCacheHostTensors tensors = make_tensors(problem);
  run_on_cpu(problem, tensors);
  expect_right(problem, tensors);
}

TEST(CpuKvCache, RandomProblems) {
  constexpr int kCount = 500;
  Ran ran("cases", kCount);
  for (const KvCacheProblem& problem : random_kvcache_problems(cpu_choices(), kCount)) {
    ++ran;
    check_problem(problem);
  }
}

TEST(CpuKvCache, SmallProblems) {
  Ran ran;
  for (const KvCacheProblem& problem : small_kvcache_problems(cpu_choices())) {
    ++ran;
    check_problem(problem);
  }
}

// The problem in another form gives the same bits.
void check_form(const KvCacheProblem& problem,
                KvCacheForm (*form)(const KvCacheProblem&, KvCacheHostTensors&)) {
  SCOPED_TRACE(testing::Message() << problem);
  KvCacheHostTensors tensors = make_tensors(problem);
  KvCacheForm other = form(problem, tensors);
  run_on_cpu(problem, tensors);
  run_on_cpu(other.problem, other.tensors);
  expect_same_bits(tensors, other.tensors, false);
}

TEST(CpuKvCache, PagesChangeNoBit) {
  constexpr int kCount = 60;
  Ran ran("paged cases", kCount / 3);
  for (const KvCacheProblem& problem : random_kvcache_problems(cpu_choices(), kCount, 2)) {
    if (problem.page_size > 0) {
      ++ran;
      check_form(problem, without_pages);
    }
  }
}

TEST(CpuKvCache, SharedPrefixesChangeNoBit) {
  constexpr int kCount = 150;
  Ran ran("shared prefixes", kCount / 10);
  for (const KvCacheProblem& problem : random_kvcache_problems(cpu_choices(), kCount, 4)) {
    if (!problem.prefix_groups.empty() && problem.descale != DescalePer::sequence) {
      ++ran;
      check_form(problem, without_prefixes);
    }
  }
}

// Each sequence by itself writes the bits that it wrote in its batch.
TEST(CpuKvCache, RowsDoNotDependOnTheirNeighbours) {
  constexpr int kCount = 60;
  Ran ran("sequences", kCount);
  for (const KvCacheProblem& problem : random_kvcache_problems(cpu_choices(), kCount, 3)) {
    if (!problem.prefix_groups.empty()) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << problem);
    KvCacheHostTensors together = make_tensors(problem);
    KvCacheHostTensors apart = together;
    run_on_cpu(problem, together);
    for (std::size_t b = 0; b < problem.batch(); ++b) {
      if (problem.q_lens[b] > 0) {
        ++ran;
        attention_with_kvcache(alone(problem, apart.views(), b), options_of(problem, "cpu"));
      }
    }
    expect_same_bits(together, apart);
  }
}

// What parts of a row's keys give, merged as attention.hpp says.
TEST(CpuKvCache, UnnormalizedPartsMerge) {
  constexpr int kFirstKeys = 150;
  KvCacheProblem whole{.dtype = DType::fp32, .cache_dtype = DType::fp32, .heads = 4, .kv_heads = 2};
  whole.q_lens = {3, 3};
  whole.cached = {400, 151};
  whole.page_size = 16;
  whole.capacity = 400;
  whole.unnormalized = true;
  KvCacheHostTensors expected = make_tensors(whole);
  KvCacheHostTensors parts[] = {expected, expected};
  run_on_cpu(whole, expected);

  reference::HostTensor first_keys(DType::int32, {2});
  reference::fill_constant(first_keys.view(), kFirstKeys);
  AttentionWithKvCacheTensors first = parts[0].views();
  first.cache_seqlens = first_keys.view();
  attention_with_kvcache(first);
  AttentionWithKvCacheTensors second = parts[1].views();
  second.leftpad_k = first_keys.view();
  attention_with_kvcache(second);

  const auto at = [](std::optional<reference::HostTensor>& statistic, std::int64_t row) {
    return reference::load(statistic->view(), row);
  };
  for (std::int64_t row = 0; row < 2 * 4 * 3; ++row) {
    const double max = std::max(at(parts[0].row_max, row), at(parts[1].row_max, row));
    double sum = 0;
    double o = 0;
    const std::int64_t b = row / 12, h = row / 3 % 4, n = row % 3;
    for (KvCacheHostTensors& part : parts) {
      const double factor = std::exp(at(part.row_max, row) - max);
      sum += factor * at(part.row_sum, row);
      o += factor * reference::load(part.o.view(), ((b * 3 + n) * 4 + h) * 64);
    }
    EXPECT_NEAR(max, at(expected.row_max, row), 1e-6);
    EXPECT_NEAR(sum, at(expected.row_sum, row), 1e-5 * sum);
    EXPECT_NEAR(o, reference::load(expected.o.view(), ((b * 3 + n) * 4 + h) * 64), 1e-5 * sum);
  }
}

// Rows of caches that nobody writes to may be several sequences' at a time.
TEST(CpuKvCache, SequencesMayReadTheSameRow) {
  KvCacheProblem problem{.heads = 2};
  problem.q_lens = {1, 1};
  problem.cached = {30, 30};
  problem.capacity = 32;
  problem.cache_batch_idx = true;
  KvCacheHostTensors tensors = make_tensors(problem);
  reference::fill_constant(tensors.cache_batch_idx->view(), 1);
  std::memcpy(tensors.q.data() + tensors.q.bytes() / 2, tensors.q.data(), tensors.q.bytes() / 2);
  run_on_cpu(problem, tensors);
  EXPECT_EQ(std::memcmp(tensors.o.data(), tensors.o.data() + tensors.o.bytes() / 2,
                        tensors.o.bytes() / 2),
            0);
}

}  // namespace
}  // namespace tilewright::test
