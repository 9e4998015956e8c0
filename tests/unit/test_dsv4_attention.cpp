// The CPU backend's DeepSeek-V4 attention, on the problems that GPU kernels are held against.
#include <gtest/gtest.h>

#include "problems/dsv4_expectation.hpp"
#include "problems/dsv4_problem_sets.hpp"
#include "ran.hpp"
#include "tilewright/dsv4_attention.hpp"

namespace tilewright::test {
namespace {

Dsv4Choices cpu_choices() { return choices_of(*find_kernel<Dsv4Attention>("cpu")); }

void run_on_cpu(const Dsv4Problem& problem, Dsv4HostTensors& tensors) {
  dsv4_attention(tensors.views(), options_of(problem, "cpu"));
}

void check_problem(const Dsv4Problem& problem) {
  SCOPED_TRACE(testing::Message() << problem);
  Dsv4HostTensors tensors = make_tensors(problem);
  run_on_cpu(problem, tensors);
  expect_right(problem, tensors);
}

TEST(CpuDsv4, RandomProblems) {
  constexpr int kCount = 200;
  Ran ran("cases", kCount);
  for (const Dsv4Problem& problem : random_dsv4_problems(cpu_choices(), kCount)) {
    ++ran;
    check_problem(problem);
  }
}

TEST(CpuDsv4, SmallProblems) {
  Ran ran;
  for (const Dsv4Problem& problem : small_dsv4_problems(cpu_choices())) {
    ++ran;
    check_problem(problem);
  }
}

}  // namespace
}  // namespace tilewright::test
