// The decode kernel's plan, which is computed without a GPU.
#include <gtest/gtest.h>

#include <limits>

#include "cuda/attention/decode/grid.hpp"
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
  p.q_len = 1000;
  EXPECT_EQ(rows_of(p), 64);
  p = problem(64, 1, 4096);
  EXPECT_EQ(rows_of(p), 32);
}

// Its host says how many tokens the longest sequence has.
TEST(DecodePlan, APackedBatchOfEqualSequencesIsPlannedAsOneThatIsNotPacked) {
  for (const int kv_heads : {1, 8}) {
    for (const int batch : {1, 3, 8, 32}) {
      for (const int q_len : {1, 2, 5, 8, 16, 32}) {
        Problem whole = problem(batch, kv_heads, 8192);
        whole.q_len = q_len;
        Problem packed = whole;
        packed.packed = true;
        packed.q_len = batch * q_len;
        packed.max_seqlen_q = q_len;
        SCOPED_TRACE(testing::Message() << kv_heads << ' ' << batch << ' ' << q_len);
        EXPECT_EQ(plan_of(packed).config, plan_of(whole).config);
        EXPECT_EQ(plan_of(packed).cluster, plan_of(whole).cluster);
        EXPECT_EQ(plan_of(packed).workers, plan_of(whole).workers);
      }
    }
  }
}

// A table may have room for many more keys than sequences have.
TEST(DecodePlan, TheMostKeysCountWhereTheHostKnowsThem) {
  for (const int kv_heads : {1, 8}) {
    for (const int batch : {1, 8, 32}) {
      const DecodePlan tight = plan_of(problem(batch, kv_heads, 2048));
      Problem wide = problem(batch, kv_heads, 131072);
      wide.max_seqlen_k = 2048;
      SCOPED_TRACE(testing::Message() << kv_heads << ' ' << batch);
      EXPECT_EQ(plan_of(wide).config, tight.config);
      EXPECT_EQ(plan_of(wide).cluster, tight.cluster);
      EXPECT_EQ(plan_of(wide).workers, tight.workers);
    }
  }
}

TEST(DecodePlan, BatchInvariantProblemsAreNotPlannedByWhatIsTold) {
  Problem p = problem(8, 8, 131072);
  p.packed = true;
  p.q_len = 64;
  p.batch_invariant = true;
  const DecodePlan plan = plan_of(p);
  p.max_seqlen_q = 8;
  p.max_seqlen_k = 1024;
  EXPECT_EQ(plan_of(p).config, plan.config);
  EXPECT_EQ(plan_of(p).cluster, plan.cluster);
  EXPECT_EQ(plan_of(p).workers, plan.workers);
  EXPECT_EQ(plan_of(p).slots, plan.slots);
}

TEST(DecodePlan, WhereItemsAreFewARowTileIsSmall) {
  EXPECT_EQ(rows_of(problem(1, 1, 1024)), 8);
  EXPECT_EQ(rows_of(problem(1, 1, 8192)), 16);
  EXPECT_EQ(rows_of(problem(1, 1, 16384)), 32);
  EXPECT_EQ(rows_of(problem(2, 1, 1024)), 16);  // as many clusters of eight as one sequence has
  EXPECT_EQ(rows_of(problem(8, 1, 1024)), 32);
  EXPECT_EQ(rows_of(problem(16, 1, 1024)), 16);
  EXPECT_EQ(rows_of(problem(64, 1, 1024)), 32);
}

TEST(DecodePlan, RowTilesOf64AreForManyKeys) {
  Problem p = problem(1, 1, 1024);
  p.heads = 64;
  EXPECT_EQ(rows_of(p), 16);
  p.capacity = 65536;
  EXPECT_EQ(rows_of(p), 32);
  p.batch = 8;
  EXPECT_EQ(rows_of(p), 64);
  p.cache_dtype = DType::e4m3;  // of which they would have no registers
  EXPECT_EQ(rows_of(p), 32);
}

TEST(DecodePlan, RowTilesOfTheSameKeysAreForKeysThatL2Holds) {
  Problem p = problem(1, 8, 8192);
  p.q_len = 24;  // 96 rows: 24 items of 32 rows, 23 tiles of an SM
  EXPECT_EQ(rows_of(p), 32);
  p.q_len = 48;
  EXPECT_EQ(rows_of(p), 64);
  p = problem(8, 8, 8192);
  p.q_len = 24;
  EXPECT_EQ(rows_of(p), 64);
  p = problem(8, 1, 8192);
  p.q_len = 4;  // 32 items: 31 tiles of an SM
  EXPECT_EQ(rows_of(p), 32);
  p.q_len = 5;
  EXPECT_EQ(rows_of(p), 64);
}

TEST(DecodePlan, WhereOperandsAreNotSwappedLargeRowTilesAreForManyKeys) {
  const auto rows_where_copied = [](int batch, int heads, std::int64_t head_dim = 128) {
    Problem p = problem(batch, 1, 8192);
    p.heads = heads;
    p.head_dim = head_dim;
    p.page_size = 8;
    return rows_of(p);
  };
  EXPECT_EQ(rows_where_copied(1, 32), 16);
  EXPECT_EQ(rows_where_copied(6, 32), 16);  // 12 items of 128 tiles
  EXPECT_EQ(rows_where_copied(7, 32), 32);
  EXPECT_EQ(rows_where_copied(1, 64), 16);
  EXPECT_EQ(rows_where_copied(32, 64), 32);
  EXPECT_EQ(rows_where_copied(64, 64), 64);
  EXPECT_EQ(rows_where_copied(64, 64, 96), 32);
  EXPECT_EQ(rows_where_copied(32, 32, 256), 16) << "those of 32 rows have no clusters";
  EXPECT_EQ(rows_where_copied(64, 32, 256), 32);
  EXPECT_EQ(rows_where_copied(64, 64, 256), 32);
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
  p.heads = 64;
  EXPECT_EQ(rows_of(p), 32) << "tiles of 64 rows have two warpgroups, not three";
  p.batch = 1;
  EXPECT_EQ(rows_of(p), 8);
  p.page_size = 8;  // whose configs differ in a row's bits
  for (const std::int64_t head_dim : {64, 96, 128, 256}) {
    p.head_dim = head_dim;
    p.batch = 1;
    const int rows = rows_of(p);
    EXPECT_EQ(rows, head_dim == 256 ? 16 : 32);
    p.batch = 1000;
    EXPECT_EQ(rows_of(p), rows);
  }
}

TEST(DecodePlan, APackedBatchsAverageCountsUnlessBitsWouldDependOnIt) {
  Problem p = problem(4, 8, 1024);
  p.packed = true;
  p.q_len = 4;
  EXPECT_EQ(rows_of(p), 8);
  p.q_len = 4 * 4;
  EXPECT_EQ(rows_of(p), 16);
  p.q_len = 4 * 9;
  EXPECT_EQ(rows_of(p), 32);
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
  EXPECT_EQ(plan_of(problem(1, 8, 1024)).cluster, 4);  // two launches' run at once
  EXPECT_EQ(plan_of(problem(1, 8, 1024)).workers, 8);
  EXPECT_EQ(plan_of(problem(1, 4, 1024)).cluster, 8);
  EXPECT_EQ(plan_of(problem(1, 1, 65536)).cluster, 8);
  EXPECT_EQ(plan_of(problem(1, 1, 65536)).workers, 14);
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).cluster, 1);
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).workers, kSms);
}

TEST(DecodePlan, AsManyWorkersShareEachLongItem) {
  EXPECT_EQ(plan_of(problem(8, 1, 8192)).cluster, 4);
  EXPECT_EQ(plan_of(problem(8, 1, 8192)).workers, 3 * 8);
  EXPECT_EQ(plan_of(problem(3, 8, 8192)).cluster, 1);
  EXPECT_EQ(plan_of(problem(3, 8, 8192)).workers, 5 * 24);
  Problem p = problem(32, 1, 4096);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(plan_of(p).cluster, 1);
  EXPECT_EQ(plan_of(p).workers, 4 * 32);
}

TEST(DecodePlan, SomeLaunchesTakeHalfOfTheSms) {
  const auto blocks_of = [](const Problem& p) {
    const DecodePlan plan = plan_of(p);
    return plan.cluster * plan.workers;
  };
  EXPECT_EQ(blocks_of(problem(8, 8, 1024)), 64);
  EXPECT_EQ(blocks_of(problem(1, 8, 8192)), 64);  // eight for each of eight items
  EXPECT_EQ(blocks_of(problem(64, 1, 1024)), 64);
  EXPECT_EQ(blocks_of(problem(4, 8, 1024)), 66);  // an idle cluster fills the half
  EXPECT_EQ(plan_of(problem(4, 8, 1024)).cluster, 2);
  EXPECT_EQ(blocks_of(problem(1, 8, 65536)), 128) << "it runs for long";
}

TEST(DecodePlan, ACallWithoutQueriesHasAPlan) {
  const auto expect_a_plan = [](const Problem& p) {
    EXPECT_EQ(plan_of(p).cluster, 1);
    EXPECT_EQ(plan_of(p).workers, kSms);
  };
  expect_a_plan(problem(0, 8, 1024));
  Problem p = problem(4, 8, 1024);
  p.q_len = 0;
  expect_a_plan(p);
  p.packed = true;
  expect_a_plan(p);
}

// Over shapes that are far apart.
TEST(DecodePlan, AGridFitsAndCostsMoreForMoreKeys) {
  for (int i = 0; i < kDecodeConfigCount; ++i) {
    const DecodeConfig& c = kDecodeConfigs[i];
    for (const int sms : {4, 78, 132}) {
      for (const int batch : {1, 3, 64, 5000}) {
        for (const int kv_heads : {1, 8, 32}) {
          float before = std::numeric_limits<float>::lowest();
          for (const std::int64_t capacity : {1ll, 64ll, 1000ll, 8192ll, 100'000ll, 1ll << 30}) {
            Problem p = problem(batch, kv_heads, static_cast<int>(capacity));
            p.head_dim = c.head_dim;
            p.value_dim = c.value_dim;
            const DecodeGrid grid = best_decode_grid(p, c, sms);
            EXPECT_TRUE(grid.cluster == 1 || grid.cluster == 2 || grid.cluster == 4 ||
                        grid.cluster == 8);
            EXPECT_LE(grid.cluster, c.most_cluster);
            EXPECT_GE(grid.workers, 1);
            EXPECT_LE(grid.cluster * grid.workers, sms * c.blocks_per_sm);
            EXPECT_LE(grid.workers, kMaxDecodeWorkers);
            if (c.swaps && c.rows < 64) {  // of which short items are not shared
              const float cost = decode_cost(p, c, sms);
              EXPECT_GE(cost, before) << batch << " x " << capacity;
              before = cost;
            }
          }
        }
      }
    }
  }
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
  p.cache_dtype = DType::e4m3;  // 64 rows, in tiles of 32
  EXPECT_TRUE(swaps(p));
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
