// The CPU backend's DeepSeek-V4 attention, on the problems that GPU kernels are held against.
#include <gtest/gtest.h>

#include "problems/dsv4_expectation.hpp"
#include "problems/dsv4_forms.hpp"
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

TEST(CpuDsv4, FlashMlasProblems) {
  Ran ran;
  for (const Dsv4Problem& problem : flash_mla_problems(cpu_choices())) {
    if (problem.batch() <= 4 && problem.q_lens.front() == 1) {
      ++ran;
      check_problem(problem);
    }
  }
}

// Each request by itself writes the bits that it wrote in its batch.
TEST(CpuDsv4, RowsDoNotDependOnTheirNeighbours) {
  constexpr int kCount = 60;
  Ran ran("requests", kCount);
  for (const Dsv4Problem& problem : random_dsv4_problems(cpu_choices(), kCount, 3)) {
    SCOPED_TRACE(testing::Message() << problem);
    Dsv4HostTensors together = make_tensors(problem);
    Dsv4HostTensors apart = together;
    run_on_cpu(problem, together);
    for (std::size_t b = 0; b < problem.batch(); ++b) {
      if (problem.q_lens[b] > 0) {
        ++ran;
        dsv4_attention(alone(problem, apart.views(), b), options_of(problem, "cpu"));
      }
    }
    expect_same_bits(together, apart);
  }
}

TEST(CpuDsv4, PagesChangeNoBit) {
  constexpr int kCount = 60;
  Ran ran("cases", kCount);
  for (const Dsv4Problem& problem : random_dsv4_problems(cpu_choices(), kCount, 2)) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    Dsv4HostTensors tensors = make_tensors(problem);
    Dsv4HostTensors moved = with_moved_pages(problem, tensors);
    run_on_cpu(problem, tensors);
    run_on_cpu(problem, moved);
    expect_same_bits(tensors, moved);
  }
}

TEST(CpuDsv4, PartsOverAnyCutMergeToTheWhole) {
  Ran ran("cases", 30);
  for (const Dsv4Problem& problem : problems_to_cut(cpu_choices(), 60)) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    std::vector<Dsv4HostTensors> parts = in_parts(problem, 1 + static_cast<int>(problem.seed % 4));
    for (Dsv4HostTensors& part : parts) {
      dsv4_attention(part.views(), options_of(problem, "cpu"));
    }
    expect_right(problem, merged(problem, parts));
  }
}

// The checks of the seed: 64 heads, a window of 128 keys and 512 chosen ones, normal inputs.
TEST(CpuDsv4, IsAsNearAsTheSeedAsks) {
  for (const Dsv4Problem& problem : seed_problems()) {
    SCOPED_TRACE(testing::Message() << problem);
    Dsv4HostTensors tensors = make_tensors(problem);
    run_on_cpu(problem, tensors);
    expect_near_as_seed(problem, tensors);
  }
}

}  // namespace
}  // namespace tilewright::test
