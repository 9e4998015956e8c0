// The CPU backend on the problems that GPU kernels are held against, which also proves those right.
#include <gtest/gtest.h>

#include "problems/batch_invariance.hpp"
#include "problems/expectation.hpp"
#include "problems/problem_sets.hpp"
#include "ran.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::test {
namespace {

void run_on_cpu(const Problem& problem, HostTensors& tensors) {
  attention(tensors.views(), options_of(problem, "cpu"));
}

void check_problem(const Problem& problem) {
  SCOPED_TRACE(testing::Message() << problem);
  HostTensors tensors = make_tensors(problem);
  run_on_cpu(problem, tensors);
  expect_right(problem, tensors);
}

TEST(CpuFeatures, EveryTenthOfTheFeatureProblems) {
  const std::vector<Problem> problems = feature_problems();
  Ran ran;
  for (std::size_t i = 0; i < problems.size(); i += 10) {
    ++ran;
    check_problem(problems[i]);
  }
}

TEST(CpuFeatures, EveryHundredthOfThemInFp32) {
  const std::vector<Problem> problems = feature_problems();
  Ran ran;
  for (std::size_t i = 5; i < problems.size(); i += 100) {
    ++ran;
    Problem p = problems[i];
    p.dtype = DType::fp32;
    check_problem(p);
  }
}

TEST(CpuFeatures, SmallProblems) {
  Ran plain("plain problems");
  for (const Problem& problem : small_problems()) {
    ++plain;
    check_problem(problem);
  }
  Ran of_features("problems of features");
  for (const Problem& problem : small_feature_problems()) {
    ++of_features;
    check_problem(problem);
  }
}

TEST(CpuFeatures, NaNsAndInfinities) {
  const std::vector<Problem> problems = special_problems();
  Ran ran;
  for (std::size_t i = 0; i < problems.size(); i += 5) {
    ++ran;
    check_problem(problems[i]);
  }
}

TEST(CpuFeatures, ResultsDoNotDependOnTheBatch) {
  Problem p{.q_len = 150, .kv_len = 333, .heads = 2, .head_dim = 32, .causal = true};
  p.batch_invariant = true;
  expect_batch_invariant(p, run_on_cpu);
  p.window.left = 40;
  expect_batch_invariant(p, run_on_cpu);
  p.q_lens = {150};
  p.kv_lens = {333};
  expect_batch_invariant(p, run_on_cpu);
}

}  // namespace
}  // namespace tilewright::test
