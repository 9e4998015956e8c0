// The plan of a call with shared prefixes, computed without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/attention/shared_prefix/plan.hpp"
#include "registry_test.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr int kSms = 132;

// Decode steps over a prefix of 8k.
Problem problem(std::int64_t batch, std::int64_t q_len) {
  return {.batch = batch,
          .q_len = q_len,
          .cache_rows = 10000,
          .page_size = 64,
          .capacity = 16384,
          .heads = 32,
          .kv_heads = 8,
          .causal = true,
          .sinks = true,
          .shared_prefix = true,
          .new_rows = true};
}

SharedPrefixDetails plan_of(const Problem& p) {
  return plan_shared_prefix(p, kSms, best_pass_configs(p, kSms));
}

TEST(SharedPrefixPlan, ThePrefixPassHasAllTokensInOneDimension) {
  const Problem pass = prefix_pass(problem(64, 3));
  EXPECT_TRUE(pass.packed && pass.unnormalized);
  EXPECT_FALSE(pass.causal || pass.sinks || pass.new_rows || pass.shared_prefix);
  EXPECT_EQ(pass.q_len, 64 * 3);
}

TEST(SharedPrefixPlan, TheSuffixPassHasTheMask) {
  const Problem pass = suffix_pass(problem(64, 3));
  EXPECT_TRUE(pass.causal && pass.unnormalized && pass.left_padding);
  EXPECT_FALSE(pass.packed || pass.sinks || pass.new_rows || pass.shared_prefix);
  EXPECT_EQ(pass.q_len, 3);
}

TEST(SharedPrefixPlan, RegionsOfTheWorkspaceFollowEachOther) {
  for (const std::int64_t q_len : {1, 3, 64}) {
    const Problem p = problem(64, q_len);
    const auto& [prefix, suffix, at] = plan_of(p);
    const auto rows = static_cast<std::size_t>(64 * q_len * p.heads);
    EXPECT_GE(at.q, 3 * 65 * sizeof(int));
    EXPECT_GE(at.row_max - at.q, q_len == 1 ? 0 : rows * 128 * 2);
    EXPECT_GE(at.row_sum - at.row_max, 2 * rows * sizeof(float));
    EXPECT_GE(at.o - at.row_sum, 2 * rows * sizeof(float));
    EXPECT_GE(at.pass - at.o, 2 * rows * 128 * sizeof(float));
    EXPECT_EQ(at.bytes - at.pass,
              std::max(decode_workspace(prefix, 128).bytes, decode_workspace(suffix, 128).bytes));
  }
}

TEST(SharedPrefixPlan, TheRowOfTheTableReservesIt) {
  const Problem p = problem(64, 1);
  EXPECT_EQ(workspace_bytes(named<AttentionWithKvCache>("decode"), p, kH200), plan_of(p).at.bytes);
}

TEST(SharedPrefixPlan, BatchInvariantCallsAreRefused) {
  Problem p = problem(64, 1);
  p.batch_invariant = true;
  const auto& decode = named<AttentionWithKvCache>("decode");
  const auto check = [&](const Kernel<AttentionWithKvCache>& kernel) {
    const auto reason = kernel.refuses(kernel, p, kH200);
    ASSERT_TRUE(reason) << kernel.info.name;
    EXPECT_EQ(reason->argument, "batch_invariant");
    EXPECT_NE(reason->message.find("splits the keys of a prefix"), std::string::npos);
  };
  check(decode);
  std::ranges::for_each(decode.variants, check);
}

TEST(SharedPrefixPlan, MoreRowsThanAnIntCountsAreRefused) {
  const auto& decode = named<AttentionWithKvCache>("decode");
  const auto reason = decode.refuses(decode, problem(1 << 20, 64), kH200);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->argument, "q");
  EXPECT_NE(reason->message.find("2^31 or more rows"), std::string::npos) << reason->message;
}

}  // namespace
}  // namespace tilewright::cuda
