// The plan of dsv4_decode, which is computed without a GPU.
#include <gtest/gtest.h>

#include "cuda/attention/dsv4_decode/plan.hpp"

namespace tilewright::cuda {
namespace {

using Problem = Dsv4AttentionProblem;
using Keys = Dsv4ScopeProblem::Keys;

constexpr int kSms = 132;

Problem problem_of(std::int64_t most_keys, std::int64_t entries) {
  return {.batch = 64,
          .q_len = 2,
          .heads = 64,
          .window = {.keys = Keys::range, .page_size = 64, .most_keys = most_keys},
          .compressed = {.keys = Keys::list, .page_size = 64, .most_keys = entries}};
}

int most_parts_of(const Problem& problem) {
  return plan_dsv4_decode(problem, kSms, 0).plan.most_parts;
}

TEST(Dsv4Plan, ABoundedRangeInALargeCacheHasOnePart) {
  EXPECT_EQ(most_parts_of(problem_of(128, 512)), 1);
  EXPECT_EQ(plan_dsv4_decode(problem_of(128, 512), kSms, 0).at.bytes, 0u);
  EXPECT_EQ(most_parts_of(problem_of(1 << 20, 512)), 16);
  EXPECT_GT(plan_dsv4_decode(problem_of(1 << 20, 512), kSms, 0).at.bytes, 0u);
}

// Each token has an item of its own here: nothing is added for ranges that are shifted.
TEST(Dsv4Plan, EighteenTilesAreOnePart) {
  EXPECT_EQ(most_parts_of(problem_of(128, 1024)), 1);
  EXPECT_EQ(most_parts_of(problem_of(129, 1024)), 2);
  EXPECT_EQ(most_parts_of(problem_of(128, 1025)), 2);
}

TEST(Dsv4Plan, SharedRangesMayBeShifted) {
  Problem problem = problem_of(1024, 1);
  problem.compressed = {.keys = Keys::range, .page_size = 64, .most_keys = 121};
  problem.heads = 8;
  problem.q_len = 8;
  EXPECT_EQ(most_parts_of(problem), 2);
  problem.window.most_keys = 1017;
  EXPECT_EQ(most_parts_of(problem), 1);
}

}  // namespace
}  // namespace tilewright::cuda
