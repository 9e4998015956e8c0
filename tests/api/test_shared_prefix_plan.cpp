// The plan of a call with shared prefixes, computed without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

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

SharedPrefixPlan plan_of(const Problem& p) {
  return plan_shared_prefix(p, kSms, best_pass_configs(p, kSms));
}

TEST(SharedPrefixPlan, ThePrefixPassHasAllRowsOfAKvHeadInOneDimension) {
  const Problem pass = prefix_pass(problem(64, 3));
  EXPECT_TRUE(pass.packed && pass.unnormalized);
  EXPECT_FALSE(pass.causal || pass.sinks || pass.new_rows || pass.shared_prefix);
  EXPECT_EQ(pass.q_len, 64 * 3 * 4);
  EXPECT_EQ(pass.heads, 8);
}

TEST(SharedPrefixPlan, ManyRowsOfAGroupRunInPrefill) {
  const auto prefills = [](const Problem& p) { return best_pass_configs(p, kSms).prefills; };
  EXPECT_FALSE(prefills(problem(16, 1)));  // 64 rows of a KV head
  EXPECT_TRUE(prefills(problem(17, 1)));
  Problem groups = problem(64, 1);
  EXPECT_TRUE(prefills(groups));
  groups.prefix_groups = 4;
  EXPECT_FALSE(prefills(groups));
}

TEST(SharedPrefixPlan, WhatPrefillDoesNotTakeRunsInDecode) {
  Problem e4m3 = problem(64, 1);
  e4m3.cache_dtype = DType::e4m3;
  EXPECT_TRUE(best_pass_configs(e4m3, kSms).prefills);
  e4m3.row_descales = true;
  EXPECT_FALSE(best_pass_configs(e4m3, kSms).prefills);
  Problem odd = problem(64, 1);
  odd.head_dim = 96;
  odd.page_size = 1;  // whose rows are copied, but for those of E4M3
  EXPECT_TRUE(best_pass_configs(odd, kSms).prefills);
  odd.cache_dtype = DType::e4m3;
  EXPECT_FALSE(best_pass_configs(odd, kSms).prefills);
}

TEST(SharedPrefixPlan, KeysOfThePrefixAreSplitWhereSmsWouldIdle) {
  const auto splits = [](const Problem& p) { return prefix_splits(plan_of(p).details); };
  EXPECT_EQ(splits(problem(64, 1)), 4);   // 2 tiles of 8 heads, for half of the SMs
  EXPECT_EQ(splits(problem(64, 16)), 1);  // 32 tiles of 8 heads
  EXPECT_EQ(splits(problem(16, 1)), 1);   // in decode
  Problem is_short = problem(64, 1);
  is_short.capacity = 2100;
  EXPECT_EQ(splits(is_short), 2);
  Problem is_long = problem(64, 1);
  is_long.capacity = 32768;
  EXPECT_EQ(splits(is_long), 8);  // for all
  Problem groups = problem(128, 1);
  groups.prefix_groups = 4;  // one tile each
  EXPECT_EQ(splits(groups), 4);
}

TEST(SharedPrefixPlan, PassesRunBesideEachOtherOnHalfOfTheSms) {
  const SharedPrefixDetails many = plan_of(problem(64, 1)).details;
  EXPECT_TRUE(many.suffix.next_may_join && std::get<PrefillPlan>(many.prefix).joins);
  EXPECT_EQ(many.suffix.workers * many.suffix.cluster, kSms / 2);
  EXPECT_EQ(std::get<PrefillPlan>(many.prefix).sequences, 1);

  const SharedPrefixDetails few = plan_of(problem(16, 1)).details;  // the prefix pass in decode
  EXPECT_FALSE(few.suffix.next_may_join || std::get<DecodePlan>(few.prefix).next_may_join);

  Problem wide = problem(64, 1);  // two blocks an SM
  wide.head_dim = wide.value_dim = 96;
  const SharedPrefixDetails filled = plan_of(wide).details;
  EXPECT_FALSE(filled.suffix.next_may_join || std::get<PrefillPlan>(filled.prefix).joins);
  EXPECT_EQ(prefix_splits(filled), 8);
}

TEST(SharedPrefixPlan, TheSuffixPassHasTheMask) {
  const Problem pass = suffix_pass(problem(64, 3));
  EXPECT_TRUE(pass.causal && pass.unnormalized && pass.left_padding);
  EXPECT_FALSE(pass.packed || pass.sinks || pass.new_rows || pass.shared_prefix);
  EXPECT_EQ(pass.q_len, 3);
}

TEST(SharedPrefixPlan, RegionsOfTheWorkspaceFollowEachOther) {
  for (const auto& [batch, q_len] : {std::pair{3, 3}, {64, 3}, {1, 64}}) {
    const Problem p = problem(batch, q_len);
    const auto& [details, bytes] = plan_of(p);
    const SharedPrefixWorkspace& at = details.at;
    const auto rows = static_cast<std::size_t>(batch * q_len * p.heads);
    const auto prefix_rows = rows * static_cast<std::size_t>(prefix_splits(details));
    EXPECT_GE(at.q, 3 * static_cast<std::size_t>(batch + 1) * sizeof(int));
    EXPECT_GE(at.prefix_max - at.q, rows * 128 * 2);
    EXPECT_GE(at.prefix_sum - at.prefix_max, prefix_rows * sizeof(float));
    EXPECT_GE(at.prefix_o - at.prefix_sum, prefix_rows * sizeof(float));
    EXPECT_GE(at.suffix_max - at.prefix_o, prefix_rows * 128 * sizeof(float));
    EXPECT_GE(at.suffix_sum - at.suffix_max, rows * sizeof(float));
    EXPECT_GE(at.suffix_o - at.suffix_sum, rows * sizeof(float));
    EXPECT_GE(at.suffix_pass - at.suffix_o, rows * 128 * sizeof(float));
    EXPECT_GE(at.prefix_pass - at.suffix_pass, decode_workspace(details.suffix, 128).bytes);
    const auto* const decode = std::get_if<DecodePlan>(&details.prefix);
    EXPECT_EQ(decode == nullptr, batch != 3);
    EXPECT_EQ(bytes - at.prefix_pass,
              decode != nullptr ? decode_workspace(*decode, 128).bytes : kPrefillDecodeAt);
  }
}

TEST(SharedPrefixPlan, TheRowOfTheTableReservesIt) {
  const Problem p = problem(64, 1);
  EXPECT_EQ(workspace_bytes(named<AttentionWithKvCache>("decode"), p, kH200), plan_of(p).bytes);
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
