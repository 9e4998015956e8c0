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

// Items of at most 16 rows are not padded to 64. The host does not know how many tokens share an
// item of packed queries over ranges.
TEST(Dsv4Plan, ItemsOfFewRowsAreTransposed) {
  const auto has_few_rows = [](const Problem& problem) {
    return plan_dsv4_decode(problem, kSms, 0).plan.has_few_rows;
  };
  const auto problem_with = [](int heads, int q_len, Keys keys) {
    Problem problem = problem_of(128, 512);
    problem.window.format = problem.compressed.format = KvRowFormat::e4m3_bf16;
    problem.compressed.keys = keys;
    problem.heads = heads;
    problem.q_len = q_len;
    return problem;
  };
  Problem lists = problem_with(16, 8, Keys::list);
  EXPECT_TRUE(has_few_rows(lists));
  lists.e4m3_output = true;
  EXPECT_FALSE(has_few_rows(lists));
  lists.e4m3_output = false;
  EXPECT_FALSE(has_few_rows(problem_with(17, 8, Keys::list)));
  lists.window.format = KvRowFormat::bf16;
  EXPECT_FALSE(has_few_rows(lists));
  Problem ranges = problem_with(8, 2, Keys::range);
  EXPECT_TRUE(has_few_rows(ranges));
  ranges.packed = true;
  EXPECT_FALSE(has_few_rows(ranges));
  EXPECT_FALSE(has_few_rows(problem_with(8, 3, Keys::range)));
}

Dsv4Plan best_plan(const Problem& problem) {
  return plan_dsv4_decode(problem, kSms, best_dsv4_config(problem, kSms)).plan;
}

// Of requests with five pairs.
Dsv4Plan best_plan_of(std::int64_t batch) {
  Problem problem = problem_of(128, 512);
  problem.batch = batch;
  problem.q_len = 1;
  return best_plan(problem);
}

TEST(Dsv4Plan, AllClustersRunAtOnce) {
  EXPECT_EQ(best_plan_of(1).cluster, 8);
  EXPECT_EQ(best_plan_of(15).cluster, 8);
  EXPECT_EQ(best_plan_of(16).cluster, 5);
  EXPECT_EQ(best_plan_of(22).cluster, 5);
  EXPECT_EQ(best_plan_of(30).cluster, 4);
  EXPECT_EQ(best_plan_of(36).cluster, 3);
  EXPECT_EQ(best_plan_of(66).cluster, 2);
  EXPECT_EQ(best_plan_of(67).cluster, 1);
}

TEST(Dsv4Plan, BlocksShareUnitsWhereThatTakesLessThanAnotherRound) {
  EXPECT_EQ(best_plan_of(26).deal.shares, 5);
  EXPECT_EQ(best_plan_of(26).deal.whole, 0);
  EXPECT_TRUE(best_plan_of(26).merges());
  EXPECT_EQ(best_plan_of(132).deal.shares, 1);
  EXPECT_FALSE(best_plan_of(132).merges());
  EXPECT_EQ(best_plan_of(140).deal.shares, 5);
  EXPECT_EQ(best_plan_of(140).deal.whole, 132);
  EXPECT_EQ(best_plan_of(192).deal.shares, 1);
}

// Results of E4M3 are merged 128 columns at a time, and there is no room for those of many parts.
TEST(Dsv4Plan, PartsAreNotSharedWithE4m3Output) {
  Problem problem = problem_of(128, 512);
  problem.compressed = {.keys = Keys::range, .page_size = 64, .most_keys = 8192};
  problem.batch = 2;
  problem.q_len = 1;
  EXPECT_EQ(best_plan(problem).deal.shares, 5);
  problem.e4m3_output = true;
  EXPECT_EQ(best_plan(problem).deal.shares, 1);
}

// Whole units are full rounds, and no block has more than one share of the others.
TEST(Dsv4Plan, AllUnitsAreDealt) {
  for (int units = 1; units < 700; ++units) {
    const auto [whole, shares] = dsv4::Deal::of(units, kSms, 5);
    EXPECT_LE(shares, 5);
    EXPECT_LE((units - whole) * shares, kSms);
    if (shares > 1) {
      EXPECT_EQ(whole % kSms, 0);
      EXPECT_LT(whole, units);
    } else {
      EXPECT_EQ(whole, units);
    }
  }
}

bool spreads(std::int64_t batch, int compressed, bool e4m3_output) {
  Problem problem = problem_of(128, compressed);
  problem.batch = batch;
  problem.q_len = 1;
  problem.e4m3_output = e4m3_output;
  return best_plan(problem).spreads;
}

// In small batches, where P of all pairs is in SMEM at once, and a block has all columns that share
// a scale.
TEST(Dsv4Plan, ClustersSpreadPartsOfFivePairs) {
  EXPECT_TRUE(spreads(15, 512, false));
  EXPECT_FALSE(spreads(16, 512, false));
  EXPECT_FALSE(spreads(1, 513, false));
  EXPECT_FALSE(spreads(1, 512, true));
}

// A token's 128 heads are two items with the same keys.
TEST(Dsv4Plan, ItemsOfOneTokenAreTwins) {
  Problem problem = problem_of(128, 1024);
  problem.heads = 128;
  const auto are_twins = [&](int config) {
    return plan_dsv4_decode(problem, kSms, config).plan.are_twins;
  };
  EXPECT_FALSE(are_twins(0)) << "rows are BF16";
  problem.window.format = KvRowFormat::e4m3;
  problem.compressed.format = KvRowFormat::e2m1;
  EXPECT_TRUE(are_twins(0));
  EXPECT_TRUE(are_twins(1)) << "twins share units with other twins";
  EXPECT_FALSE(are_twins(2)) << "a cluster shares a unit";
  EXPECT_EQ(plan_dsv4_decode(problem, 133, 0).plan.blocks, 132);
  problem.window.format = KvRowFormat::e4m3_bf16;
  EXPECT_FALSE(are_twins(0)) << "a kernel for any formats";
  problem.compressed.format = KvRowFormat::e4m3_bf16;
  EXPECT_TRUE(are_twins(0));
  problem.fresh_rows = true;
  EXPECT_FALSE(are_twins(0)) << "fresh rows are BF16";
  problem.fresh_rows = false;
  problem.heads = 64;
  EXPECT_FALSE(are_twins(0));
  problem.heads = 65;
  EXPECT_TRUE(are_twins(0));
}

// They need less time for a pair than the blocks of a cluster that shares a unit.
TEST(Dsv4Plan, TwinsShareUnitsInBatchesOfMediumSize) {
  Problem problem = problem_of(128, 1024);
  problem.heads = 128;
  problem.q_len = 1;
  problem.window.format = KvRowFormat::e4m3_bf16;
  problem.compressed.format = KvRowFormat::e4m3_bf16;
  const auto plan_of = [&](std::int64_t batch) {
    problem.batch = batch;
    return best_plan(problem);
  };
  EXPECT_EQ(plan_of(8).cluster, 5);
  for (const int batch : {4, 12, 16}) {
    EXPECT_TRUE(plan_of(batch).are_twins) << batch;
    EXPECT_GT(plan_of(batch).deal.shares, 1) << batch;
  }
  EXPECT_EQ(plan_of(24).cluster, 2);
  EXPECT_EQ(plan_of(40).deal.shares, 1);
}

// Every pair belongs to one part, and every part but an item's only one has ten tiles at most, or
// twelve where two items have the same keys.
void expect_that_parts_share_all_pairs(int head_tiles) {
  for (int tiles = 1; tiles <= dsv4::kMostParts * dsv4::part_tiles(head_tiles); ++tiles) {
    const int parts = dsv4::parts_of_tiles(tiles, head_tiles);
    const int pairs = dsv4::pairs_of_tiles(tiles);
    EXPECT_EQ(dsv4::first_pair(0, parts, pairs), 0);
    EXPECT_EQ(dsv4::first_pair(parts, parts, pairs), pairs);
    for (int part = 0; part < parts; ++part) {
      const int its =
          dsv4::first_pair(part + 1, parts, pairs) - dsv4::first_pair(part, parts, pairs);
      EXPECT_GT(its, 0);
      EXPECT_LE(its, dsv4::most_pairs_of_part(tiles, parts));
      EXPECT_LE(its * 2, parts == 1 ? dsv4::kOnePartTiles : dsv4::part_tiles(head_tiles));
    }
  }
}
TEST(Dsv4Plan, PartsShareAllPairs) {
  expect_that_parts_share_all_pairs(1);
  expect_that_parts_share_all_pairs(2);
}

// A part of a range of a million keys has 512 pairs.
TEST(Dsv4Plan, ALongRangeDoesNotNeedASlotAPair) {
  Problem problem = problem_of(1 << 20, 512);
  problem.batch = 1;
  problem.q_len = 1;
  for (std::size_t config = 0; config < kDsv4Configs.size(); ++config) {
    const Dsv4Details details = plan_dsv4_decode(problem, kSms, static_cast<int>(config));
    EXPECT_LE(details.plan.pair_slots, 9);
    EXPECT_LT(details.at.bytes, 16u * 11 * 132 * 1024);
  }
}

// Block 0 merges its even share, or more where slots are few.
TEST(Dsv4Plan, BlocksWithoutSlotsForTheirPairsHaveNone) {
  EXPECT_EQ(dsv4::merged_pairs(5, Divisor(1), 1), 5);
  EXPECT_EQ(dsv4::merged_pairs(5, Divisor(2), 3), 3);
  EXPECT_EQ(dsv4::merged_pairs(5, Divisor(8), 5), 1);
  EXPECT_EQ(dsv4::merged_pairs(9, Divisor(8), 5), 5);
}

}  // namespace
}  // namespace tilewright::cuda
