// The CPU backend's attention over KV caches, on the problems that GPU kernels are held against.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "problems/kvcache_expectation.hpp"
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

TEST(CpuKvCache, PagesChangeNoBit) {
  constexpr int kCount = 60;
  Ran ran("paged cases", kCount / 3);
  for (const KvCacheProblem& problem : random_kvcache_problems(cpu_choices(), kCount, 2)) {
    if (problem.page_size == 0) {
      continue;
    }
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    KvCacheHostTensors paged = make_tensors(problem);
    WithoutPages whole = without_pages(problem, paged);
    run_on_cpu(problem, paged);
    run_on_cpu(whole.problem, whole.tensors);
    expect_same_bits(paged, whole.tensors, false);
  }
}

}  // namespace
}  // namespace tilewright::test
