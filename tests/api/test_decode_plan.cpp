// The decode kernel's plan, which is computed without a GPU.
#include <gtest/gtest.h>

#include <limits>

#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/decode/schedule.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr int kSms = 132;

Problem problem(int batch, int kv_heads, int capacity) {
  return {
      .batch = batch, .cache_rows = batch, .capacity = capacity, .heads = 32, .kv_heads = kv_heads};
}

DecodePlan plan_of(const Problem& p) {
  return plan_decode(p, kSms, best_decode_config(p, kSms).value()).plan;
}

int rows_of(const Problem& p) { return kDecodeConfigs[best_decode_config(p, kSms).value()].rows; }

TEST(DecodePlan, ARowTileHoldsASequencesRowsOrAsManyAsThereAre) {
  Problem p = problem(4, 8, 1024);
  EXPECT_EQ(rows_of(p), 8);  // 4 heads
  p.q_len = 4;
  EXPECT_EQ(rows_of(p), 16);
  p.q_len = 5;
  EXPECT_EQ(rows_of(p), 32);
  p.q_len = 9;
  EXPECT_EQ(rows_of(p), 64);
  p.q_len = 1000;
  EXPECT_EQ(rows_of(p), 64);
  p = problem(64, 1, 4096);
  EXPECT_EQ(rows_of(p), 32);
}

TEST(DecodePlan, WhereAnSmComputesFewTilesARowTileIsSmall) {
  EXPECT_EQ(rows_of(problem(1, 1, 66 * 64)), 8);  // four row tiles: two tiles for each SM
  EXPECT_EQ(rows_of(problem(1, 1, 66 * 64 + 1)), 16);
  EXPECT_EQ(rows_of(problem(2, 1, 1024)), 16);  // clusters of eight would take half of the SMs
  EXPECT_EQ(rows_of(problem(1, 1, 2 * 132 * 64)), 16);  // two row tiles: four tiles for each SM
  EXPECT_EQ(rows_of(problem(1, 1, 2 * 132 * 64 + 1)), 32);
  EXPECT_EQ(rows_of(problem(64, 1, 1024)), 16);  // a block has a whole item
  EXPECT_EQ(rows_of(problem(67, 1, 1024)), 32);  // more items than SMs
  EXPECT_EQ(rows_of(problem(8, 1, 8192)), 32);   // in clusters, which merge
}

TEST(DecodePlan, BatchInvariantRowTilesAreSmallWhereSplitsAreFew) {
  Problem p = problem(4, 1, 1024);
  p.batch_invariant = true;
  EXPECT_EQ(rows_of(p), 8);  // 16 row tiles of four splits
  p.batch = 5;
  EXPECT_EQ(rows_of(p), 16);
  p.batch = 8;
  EXPECT_EQ(rows_of(p), 16);
  p.batch = 9;
  EXPECT_EQ(rows_of(p), 32);
  p.batch = 1;
  p.heads = 64;
  EXPECT_EQ(rows_of(p), 64) << "fewer rows have three warpgroups";
}

TEST(DecodePlan, APackedBatchsAverageCountsUnlessBitsWouldDependOnIt) {
  Problem p = problem(4, 8, 1024);
  p.packed = true;
  p.q_len = 4 * 9;
  EXPECT_EQ(rows_of(p), 64);
  p.batch_invariant = true;
  EXPECT_EQ(rows_of(p), 8);
}

TEST(DecodePlan, PackedSequencesOfOneTokenArePlannedAsAnyOthers) {
  for (const int kv_heads : {1, 2, 8, 32}) {
    for (const int batch : {1, 2, 8, 33, 200}) {
      for (const bool is_invariant : {false, true}) {
        Problem p = problem(batch, kv_heads, 4096);
        p.batch_invariant = is_invariant;
        const DecodePlan plan = plan_of(p);
        p.packed = true;
        p.q_len = batch;
        const DecodePlan packed = plan_of(p);
        EXPECT_EQ(packed.config, plan.config);
        EXPECT_EQ(packed.cluster, plan.cluster);
        EXPECT_EQ(packed.workers, plan.workers);
      }
    }
  }
}

TEST(DecodePlan, FewItemsRunInClusters) {
  EXPECT_EQ(plan_of(problem(1, 8, 4096)).cluster, 8);
  EXPECT_EQ(plan_of(problem(3, 8, 2048)).cluster, 4);
  EXPECT_EQ(plan_of(problem(8, 8, 65536)).cluster, 2);  // on 128 of 132 SMs
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).cluster, 1);
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).workers, kSms);
}

TEST(DecodePlan, ShortItemsRunInSmallerClusters) {
  EXPECT_EQ(plan_of(problem(1, 8, 1024 + 64)).cluster, 8);  // eight of the 15 that run at once
  EXPECT_EQ(plan_of(problem(1, 8, 1024)).cluster, 4);       // two launches' run at once
  EXPECT_EQ(plan_of(problem(1, 4, 1024)).cluster, 8);
  EXPECT_EQ(plan_of(problem(1, 4, 1024 - 64)).cluster, 4);  // two tiles a block
  EXPECT_EQ(plan_of(problem(1, 4, 256)).cluster, 2);
  EXPECT_EQ(plan_of(problem(1, 4, 256 - 64)).cluster, 1);
  EXPECT_EQ(plan_of(problem(4, 8, 256)).cluster, 2);  // 32 of 66
  EXPECT_EQ(plan_of(problem(5, 8, 256)).cluster, 1);
}

TEST(DecodePlan, NoWorkerIsWithoutWorkWhereTilesAreFewerThanSms) {
  EXPECT_EQ(plan_of(problem(1, 8, 1024)).workers, 8);
  EXPECT_EQ(plan_of(problem(1, 8, 17 * 64)).workers, 14);  // 136 tiles
  EXPECT_EQ(plan_of(problem(8, 8, 128)).workers, 64);
  Problem p = problem(1, 8, 1024);
  p.batch_invariant = true;  // a bundle of four splits is one worker's
  EXPECT_EQ(plan_of(p).workers, 8);
  p = problem(1, 1, 2048);  // four items of two bundles, which are one worker's
  p.batch_invariant = true;
  EXPECT_EQ(plan_of(p).cluster, 8);
  EXPECT_EQ(plan_of(p).workers, 4);
}

TEST(DecodePlan, ABlockHasFourTilesWhereTilesAreFewerThanSms) {
  const DecodePlan plan = plan_of(problem(1, 1, 8192));  // two items
  EXPECT_EQ(plan.cluster, 8);
  EXPECT_EQ(plan.workers, 2 * 128 / (4 * 8));
  Problem p = problem(1, 1, 8192);
  p.page_size = 16;
  EXPECT_EQ(plan_of(p).workers, 2 * 128 / (4 * 8));
  p.page_size = 8;  // of the one item of 32 rows; a block takes longer to load them, and has two
  EXPECT_EQ(rows_of(p), 32);
  EXPECT_EQ(plan_of(p).workers, 128 / (2 * 8));
}

TEST(DecodePlan, SomeLaunchesTakeHalfOfTheSms) {
  Problem p = problem(8, 8, 1024);  // 64 clusters of two would take all but four
  EXPECT_EQ(plan_of(p).cluster, 1);
  EXPECT_EQ(plan_of(p).workers, kSms / 2);
  p.cache_dtype = DType::e4m3;  // which a block would widen for as long as memory takes
  EXPECT_EQ(plan_of(p).cluster, 2);
  EXPECT_EQ(plan_of(problem(8, 8, 4096)).cluster, 1);
  EXPECT_EQ(plan_of(problem(8, 8, 4096 + 64)).cluster, 2);
  EXPECT_EQ(plan_of(problem(4, 8, 1024)).cluster, 2) << "two launches have room";
  p = problem(8, 8, 1024);
  p.page_size = 16;
  EXPECT_EQ(plan_of(p).cluster, 2) << "an SM takes longer to load them";
  p.page_size = 0;
  p.head_dim = 64;
  EXPECT_EQ(plan_of(p).cluster, 2);
}

TEST(DecodePlan, BlocksOnHalfOfTheSmsShareLongItems) {
  const auto takes_half = [](const Problem& p, int workers = 64) {  // eight for each of eight items
    const DecodePlan plan = plan_of(p);
    return plan.cluster == 1 && plan.workers == workers;
  };
  EXPECT_TRUE(takes_half(problem(1, 8, 8192)));
  EXPECT_FALSE(takes_half(problem(1, 8, 7 * 132 * 64 / 8))) << "a merge in memory takes too long";
  EXPECT_TRUE(takes_half(problem(1, 8, 64 * 132 * 64 / 8)));
  EXPECT_FALSE(takes_half(problem(1, 8, 64 * 132 * 64 / 8 + 64))) << "they run for long";
  EXPECT_TRUE(takes_half(problem(1, 4, 16384)));
  EXPECT_FALSE(takes_half(problem(1, 2, 32768))) << "few items in clusters of eight";
  EXPECT_TRUE(takes_half(problem(2, 8, 8192)));
  EXPECT_TRUE(takes_half(problem(3, 4, 16384), kSms / 2)) << "five for each would be 60";
  EXPECT_TRUE(takes_half(problem(3, 8, 8192), kSms / 2)) << "two for each would be 48";
  EXPECT_FALSE(takes_half(problem(4, 8, 8192))) << "two clusters an item";
  Problem p = problem(7, 2, 8192);
  p.heads = 8;
  EXPECT_EQ(plan_of(p).cluster, 8) << "each of the 14 has a cluster";
  p = problem(1, 8, 8192);
  p.page_size = 64;
  EXPECT_TRUE(takes_half(p));
  p.page_size = 16;
  EXPECT_TRUE(takes_half(p));
  p.capacity = 16 * 132 * 64 / 8 + 64;
  EXPECT_FALSE(takes_half(p));
  p.page_size = 8;
  EXPECT_FALSE(takes_half(p)) << "rows are copied";
  p = problem(1, 8, 8192);
  p.cache_dtype = DType::e4m3;
  EXPECT_FALSE(takes_half(p));
  p = problem(1, 8, 8192);
  p.head_dim = 256;
  EXPECT_FALSE(takes_half(p));
}

TEST(DecodePlan, BlocksOnAllSmsShareItemsWhereClustersWouldLeaveMany) {
  Problem p = problem(5, 8, 8192);  // 40 clusters of two leave 52 SMs
  EXPECT_EQ(plan_of(p).cluster, 1);
  EXPECT_EQ(plan_of(p).workers, kSms);
  EXPECT_EQ(plan_of(problem(8, 8, 8192)).cluster, 2);
}

TEST(DecodePlan, OfE4m3RowTilesAreSmallerWhereTheNextLaunchHasRoom) {
  Problem p = problem(3, 1, 1024);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(rows_of(p), 16);
  p.batch = 4;  // eight clusters of eight
  EXPECT_EQ(rows_of(p), 32);
  p = problem(1, 1, 132 * 64);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(rows_of(p), 16);  // two tiles for each SM
  p.capacity = 2 * 132 * 64;  // four
  EXPECT_EQ(rows_of(p), 32);
}

TEST(DecodePlan, OnlyTheKeysInAWindowCount) {
  Problem p = problem(1, 8, 1 << 20);
  p.window = true;
  EXPECT_EQ(plan_of(p).cluster, plan_of(problem(1, 8, 1 << 20)).cluster) << "unlimited to the left";
  p.window_left = 127;  // 128 keys, in three tiles at most
  EXPECT_EQ(plan_of(p).cluster, plan_of(problem(1, 8, 3 * 64)).cluster);
  EXPECT_EQ(plan_of(p).workers, 8);
  p.batch_invariant = true;
  EXPECT_EQ(plan_of(p).slots, 8);  // one split
  p.q_len = 2;
  p.window_left = 191;  // 193 keys, in four tiles at most
  EXPECT_EQ(plan_of(p).slots, 8);
  p.window_left = 192;
  EXPECT_EQ(plan_of(p).slots, 8 * 2);
  p = problem(1, 8, 1 << 20);
  p.window_left = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(plan_of(p).cluster, plan_of(problem(1, 8, 1 << 20)).cluster);
}

TEST(DecodePlan, ClustersShareLongItemsWhereSmsWouldIdle) {
  EXPECT_EQ(plan_of(problem(4, 8, 65536)).cluster, 2);  // two for each of 32 items
  EXPECT_EQ(plan_of(problem(1, 1, 65536)).cluster, 8);  // 32 rows
  Problem p = problem(1, 8, 65536);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(plan_of(p).cluster, 2);
  p.capacity = 8192;
  EXPECT_EQ(plan_of(p).cluster, 8);  // 16 tiles a block
  p = problem(1, 1, 65536);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(plan_of(p).cluster, 8);  // seven for each of two items
}

TEST(DecodePlan, WhereRowsAreCopiedAnSmHasTwoBlocks) {
  Problem p = problem(64, 8, 65536);
  p.page_size = 8;
  EXPECT_EQ(plan_of(p).workers, 2 * kSms);
}

TEST(DecodePlan, BlocksOfABatchInvariantClusterHaveASplitEach) {
  Problem p = problem(1, 8, 65536);
  p.batch_invariant = true;
  EXPECT_EQ(plan_of(p).cluster, 1) << "8 items of four bundles each do not all run at once";
  EXPECT_EQ(plan_of(p).slots, 8 * kMaxSplits);
  p.capacity = 8192;  // eight blocks for each item would leave the next launch no room
  EXPECT_EQ(plan_of(p).cluster, 1);
  EXPECT_EQ(plan_of(p).workers, 8 * kShortSplits);
  p.capacity = 4096;
  EXPECT_EQ(plan_of(p).cluster, 8);
  EXPECT_EQ(plan_of(p).workers, 8);
  p.capacity = 4 * kMinSplitTiles * kDecodeTileKeys;
  EXPECT_EQ(plan_of(p).cluster, 4);
  p.capacity = 2 * kMinSplitTiles * kDecodeTileKeys;
  EXPECT_EQ(plan_of(p).cluster, 2);
  p.capacity = kMinSplitTiles * kDecodeTileKeys;
  EXPECT_EQ(plan_of(p).cluster, 1);
  EXPECT_EQ(plan_of(p).slots, 8);
  p = problem(3, 8, 1024);  // 24 items of one bundle
  p.batch_invariant = true;
  EXPECT_EQ(plan_of(p).cluster, 4);
}

TEST(DecodePlan, ALoadBringsAPageOrATileOrRowsAreCopied) {
  Problem p = problem(4, 8, 4096);
  EXPECT_TRUE(plan_of(p).loads_boxes);
  EXPECT_EQ(plan_of(p).box_rows, 64);
  for (int page_size = 1; page_size <= 300; ++page_size) {
    p.page_size = page_size;
    const bool is_a_part = page_size == 16 || page_size == 32;
    EXPECT_EQ(plan_of(p).loads_boxes, is_a_part || page_size % 64 == 0) << page_size;
    EXPECT_EQ(plan_of(p).box_rows, is_a_part ? page_size : page_size % 64 == 0 ? 64 : 1);
  }
}

TEST(DecodePlan, WorkspaceDoesNotGrowWithTheCache) {
  const Problem small = problem(64, 8, 1024);
  const Problem large = problem(64, 8, 1 << 22);
  EXPECT_EQ(plan_decode(small, kSms, 6).at.bytes, plan_decode(large, kSms, 6).at.bytes);
}

TEST(DecodePlan, WhereKeysAreTheRowsCachesAreLoadedByTma) {
  Problem p = problem(4, 8, 4096);
  for (const DecodeConfig& c : kDecodeConfigs) {
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    for (const int page_size : {0, 1, 8, 16, 24, 32, 64, 100, 128, 256}) {
      p.page_size = page_size;
      EXPECT_EQ(takes(c, p), !c.swaps || loads_boxes(p)) << page_size;
    }
  }
}

// O is left where a tile was: Dv floats a row, and a tile has 64 keys of D + Dv bytes.
TEST(DecodePlan, WhereKeysAreTheRowsOFitsInATile) {
  for (const DecodeConfig& c : kDecodeConfigs) {
    const int o_bytes = c.rows * c.value_dim * 4;
    const int e4m3_tile_bytes = kDecodeTileKeys * (c.head_dim + c.value_dim);
    EXPECT_TRUE(!c.swaps || o_bytes <= 2 * e4m3_tile_bytes);
    EXPECT_TRUE(!c.swaps || !takes_e4m3(c) || o_bytes <= e4m3_tile_bytes);
  }
}

TEST(DecodePlan, KeysAreTheRowsWhereTheyCanBe) {
  const auto swaps = [](const Problem& p) {
    return kDecodeConfigs[best_decode_config(p, kSms).value()].swaps;
  };
  for (const int kv_heads : {1, 8, 32}) {
    Problem p = problem(8, kv_heads, 1024);
    EXPECT_TRUE(swaps(p));
    p.page_size = 64;
    EXPECT_TRUE(swaps(p));
    p.page_size = 8;
    EXPECT_FALSE(swaps(p));
    p.page_size = 0;
    p.head_dim = p.value_dim = 256;
    EXPECT_FALSE(swaps(p));
  }
  Problem p = problem(64, 1, 4096);
  p.q_len = 2;
  p.cache_dtype = DType::e4m3;  // 64 rows
  EXPECT_FALSE(swaps(p));
}

// The kernel divides O's columns among a cluster's blocks, in pieces of four, and a ring's stages
// among warpgroups.
TEST(DecodePlan, ColumnsAndStagesAreDivided) {
  for (const DecodeConfig& c : kDecodeConfigs) {
    EXPECT_EQ(c.value_dim / 4 % c.most_cluster, 0);
    EXPECT_LE(c.most_cluster, kMaxDecodeCluster);
    EXPECT_EQ(64 % c.rows, 0);
    for (const bool is_e4m3 : {false, takes_e4m3(c)}) {
      EXPECT_EQ((is_e4m3 ? c.e4m3_stages : c.stages) % (c.swaps ? swapped_groups(c) : 1), 0);
    }
  }
}

}  // namespace
}  // namespace tilewright::cuda
