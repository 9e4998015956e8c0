// How the decode kernel's work is dealt out, and its plan: both are computed without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/decode/schedule.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr int kSms = 132;

class Random {
 public:
  int operator()(int first, int last) {
    return std::uniform_int_distribution<int>(first, last)(engine_);
  }

 private:
  std::mt19937 engine_{20261124};
};

DecodeShape shape_of(int heads, int kv_heads, bool is_causal, const KeyWindow& window) {
  DecodeShape shape = decode_shape(heads, kv_heads, 16);
  shape.is_causal = is_causal;
  shape.window = window;
  return shape;
}

// ---- Quotients and shares

TEST(DecodeSchedule, QuotientsAreExact) {
  Random random;
  for (int i = 0; i < 200000; ++i) {
    const int b = random(1, i % 2 == 0 ? 300 : 1 << 20);
    const int a = random(0, std::numeric_limits<int>::max() - b);
    if (a / b < 1 << 22) {
      ASSERT_EQ(quotient(a, b), a / b) << a << " / " << b;
    }
  }
}

TEST(DecodeSchedule, SharesCoverAllUnitsOnce) {
  Random random;
  for (int i = 0; i < 20000; ++i) {
    const int items = random(1, 600);
    const int most_units = random(1, i % 3 == 0 ? 2000 : 20);
    const bool are_equal = random(0, 1) == 1;
    const int units = are_equal ? items * most_units : random(items, items * most_units);
    const Workers workers{.count = Divisor(random(1, kMaxDecodeWorkers)),
                          .cluster_log2 = random(0, 3),
                          .merge_tiles = random(0, 20),
                          .may_take = random(0, 1) == 1};
    const UnitShares shares(units, items, most_units, workers);
    ASSERT_GE(shares.workers(), 1);
    ASSERT_LE(shares.workers(), workers.count);
    ASSERT_EQ(shares.begin(0), 0);
    const int count = shares.workers() + shares.further();
    ASSERT_EQ(shares.begin(count), units);
    for (int s = 0; s < count; ++s) {
      ASSERT_LT(shares.begin(s), shares.begin(s + 1)) << "share " << s << " is empty";
    }
  }
}

TEST(DecodeSchedule, HalfOfManyShortItemsAreFurtherShares) {
  const Workers workers{
      .count = Divisor(132), .cluster_log2 = 0, .merge_tiles = 12, .may_take = true};
  const UnitShares shares(1024 * 16, 1024, 16, workers);
  EXPECT_EQ(shares.further(), 512);
  for (int s = 0; s < 132 + 512; ++s) {
    const int items = (shares.begin(s + 1) - shares.begin(s)) / 16;
    EXPECT_EQ(shares.begin(s) % 16, 0);
    EXPECT_TRUE(s < 132 ? items == 3 || items == 4 : items == 1) << s;
  }
  EXPECT_EQ(UnitShares(1024 * 16 - 1, 1024, 16, workers).further(), 0) << "items differ";
  EXPECT_EQ(UnitShares(1024 * 64, 1024, 64, workers).further(), 0) << "items are long";
  EXPECT_EQ(UnitShares(1024 * 4, 1024, 4, workers).further(), 0) << "items are too short";
  EXPECT_EQ(UnitShares(200 * 16, 200, 16, workers).further(), 0) << "items are few";
}

TEST(DecodeSchedule, NoUnitsNeedNoWorker) {
  EXPECT_EQ(
      UnitShares(0, 0, 0,
                 {.count = Divisor(132), .cluster_log2 = 0, .merge_tiles = 10, .may_take = false})
          .workers(),
      0);
}

TEST(DecodeSchedule, EqualItemsStayWholeWhereAMergeTakesLonger) {
  const Workers workers{
      .count = Divisor(264), .cluster_log2 = 0, .merge_tiles = 12, .may_take = false};
  const UnitShares whole(1024 * 16, 1024, 16, workers);  // 4 items each, on 256 of 264 workers
  for (int w = 0; w < whole.workers(); ++w) {
    EXPECT_EQ(whole.begin(w) % 16, 0);
  }
  const UnitShares split(8 * 1024, 8, 1024, workers);
  EXPECT_EQ(split.workers(), 264);
}

TEST(DecodeSchedule, LaterSharesAreThoseOfEarlierBlocks) {
  const Workers workers{
      .count = Divisor(132), .cluster_log2 = 0, .merge_tiles = 12, .may_take = false};
  const UnitShares few(100, 10, 19, workers);
  EXPECT_EQ(few.workers(), 100);
  EXPECT_EQ(few.share_of(0), 99);
  EXPECT_EQ(few.share_of(99), 0);
  EXPECT_LT(few.share_of(100), 0) << "there is no work for it";
}

// ---- Parts and their places

struct PartOfShare {
  int share;
  int item;
  PartPlace place;
};

// All parts of items of which item i has units[i] units, share by share. Each unit is one if
// `is_invariant`, else items that are whole have none.
std::vector<PartOfShare> parts_of(const std::vector<int>& units, const UnitShares& shares,
                                  bool is_invariant) {
  std::vector<PartOfShare> all;
  int first = 0;
  for (int item = 0; item < static_cast<int>(units.size()); ++item) {
    const int count = units[static_cast<std::size_t>(item)];
    for (int s = 0; s < shares.workers(); ++s) {
      const int begin = std::max(shares.begin(s), first);
      const int end = std::min(shares.begin(s + 1), first + count);
      if (is_invariant) {
        for (int unit = begin; unit < end; ++unit) {
          all.push_back({s, item, place_of_unit(shares, s, first, count, unit - first, true)});
        }
      } else if (begin < end && end - begin < count) {
        all.push_back({s, item, place_of_share(shares, s, first, count)});
      }
    }
    first += count;
  }
  return all;
}

struct RandomShares {
  std::vector<int> units;
  UnitShares shares;

  explicit RandomShares(Random& random)
      : units(static_cast<std::size_t>(random(1, 60))), shares(0, 0, 0, workers(1, false)) {
    int total = 0;
    for (int& count : units) {
      count = random(1, random(0, 5) == 0 ? 900 : 12);
      total += count;
    }
    shares = UnitShares(total, static_cast<int>(units.size()), total + 1,
                        workers(random(1, 264), random(0, 1) == 1));
  }

 private:
  static Workers workers(int count, bool may_take) {
    return {.count = Divisor(count), .cluster_log2 = 0, .merge_tiles = 0, .may_take = may_take};
  }
};

// Calls check(parts, items, slots) with the parts of random shares, how many items there are, and
// how many slots.
template <typename Check>
void for_random_parts(const Check& check) {
  Random random;
  for (int i = 0; i < 2000; ++i) {
    const RandomShares of(random);
    const int workers = of.shares.workers();
    check(parts_of(of.units, of.shares, false), of.units.size(), workers);
    check(parts_of(of.units, of.shares, true), of.units.size(), of.shares.begin(workers));
  }
}

TEST(DecodeSchedule, PartsHavePlacesOfTheirOwn) {
  for_random_parts([](const std::vector<PartOfShare>& all, std::size_t items, int slots_end) {
    std::vector<int> parts(items, 0);
    for (const PartOfShare& part : all) {
      ASSERT_EQ(part.place.index, parts[static_cast<std::size_t>(part.item)]++)
          << "parts come in the order of shares";
    }
    std::set<int> slots;
    for (const PartOfShare& part : all) {
      ASSERT_EQ(part.place.parts, parts[static_cast<std::size_t>(part.item)]);
      if (!part.place.merges) {
        ASSERT_TRUE(slots.insert(part.place.slot0 + part.place.index).second);
        ASSERT_LT(part.place.slot0 + part.place.index, slots_end);
      }
    }
  });
}

// And only when its own share has nothing more to leave, so that no two shares wait for each other.
TEST(DecodeSchedule, OnePartMergesAndWaitsForLaterSharesOnly) {
  for_random_parts([](const std::vector<PartOfShare>& all, std::size_t items, int) {
    std::vector<const PartOfShare*> merging(items, nullptr);
    std::map<int, const PartOfShare*> last_of_share;
    for (const PartOfShare& part : all) {
      last_of_share[part.share] = &part;
      if (part.place.merges) {
        ASSERT_EQ(merging[static_cast<std::size_t>(part.item)], nullptr)
            << "two parts merge an item";
        merging[static_cast<std::size_t>(part.item)] = &part;
      }
    }
    for (const PartOfShare& part : all) {
      const PartOfShare* const merges = merging[static_cast<std::size_t>(part.item)];
      ASSERT_NE(merges, nullptr);
      ASSERT_GE(part.share, merges->share);
      ASSERT_EQ(part.place.is_awaited, part.share != merges->share);
      if (part.share > merges->share) {
        ASSERT_EQ(last_of_share[merges->share], merges);
      }
    }
  });
}

TEST(DecodeSchedule, AClusterSharesATileRange) {
  for (int tiles = 0; tiles < 40; ++tiles) {
    for (int size_log2 = 0; size_log2 <= 3; ++size_log2) {
      int next = 7;
      for (int rank = 0; rank < 1 << size_log2; ++rank) {
        const TileRange share = tiles_of_block({.first = 7, .end = 7 + tiles}, rank, size_log2);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.first, share.end);
        next = share.end;
      }
      EXPECT_EQ(next, 7 + tiles);
    }
  }
}

// ---- Splits of batch-invariant sequences

TEST(DecodeSchedule, SplitsFollowFromASequencesTiles) {
  for (int tiles = 1; tiles <= 3000; ++tiles) {
    const int splits = ceil_div(tiles, split_tiles_of(tiles, 1));
    EXPECT_LE(splits, tiles <= kShortTiles ? kShortSplits : kMaxSplits);
    EXPECT_GE(split_tiles_of(tiles, 1), kMinSplitTiles);
    EXPECT_EQ(ceil_div(tiles, split_tiles_of(tiles, kMostSplitRowTiles + 1)), 1);
  }
  EXPECT_EQ(ceil_div(16, split_tiles_of(16, 1)), kBundle);
}

TEST(DecodeSchedule, AUnitIsABundleWhereNoWorkerIsMuchLater) {
  Workers workers{.count = Divisor(132), .cluster_log2 = 0, .merge_tiles = 0, .may_take = false};
  EXPECT_EQ(splits_of_unit(64 * 8, 64 * 2, workers), kBundle);
  EXPECT_EQ(splits_of_unit(8 * 16, 8 * 4, workers), 1) << "most workers would have none";
  EXPECT_EQ(splits_of_unit(140 * 4, 140, workers), 1) << "eight of them would have two";
  workers.cluster_log2 = 1;
  EXPECT_EQ(splits_of_unit(2, 1, workers), kBundle);
  workers.cluster_log2 = 3;
  EXPECT_EQ(splits_of_unit(8, 2, workers), 8);

  SequenceWork work{};
  work.unit_tiles = 5;
  work.units = 7;
  EXPECT_EQ(in_units_of(work, kBundle).unit_tiles, 5 * kBundle);
  EXPECT_EQ(in_units_of(work, kBundle).units, 2);
}

// ---- Work of a sequence

TEST(DecodeSchedule, WorkHasEveryKeyThatIsSeen) {
  Random random;
  for (int i = 0; i < 3000; ++i) {
    const int kv_heads = random(1, 4);
    const int heads = kv_heads * random(1, 100);
    const KeyWindow window{.left = random(0, 2) == 0 ? random(0, 200) : kNoLimit,
                           .right = random(0, 2) == 0 ? random(0, 50) : kNoLimit};
    DecodeShape shape = shape_of(heads, kv_heads, random(0, 1) == 1, window);
    shape.is_invariant = random(0, 1) == 1;
    const int kv_len = random(0, 700);
    const SequenceLengths lengths{
        .q_start = 0, .q_len = random(1, 90), .kv_len = kv_len, .leftpad = random(0, kv_len)};
    const SequenceWork work = work_of(shape, lengths);
    const CacheKeys keys = shape.keys_of(lengths);
    ASSERT_GE(work.units, 1);
    int next = work.tile_first;
    for (int unit = 0; unit < work.units; ++unit) {
      const TileRange tiles = tiles_of_units(shape, work, unit, unit + 1);
      ASSERT_EQ(tiles.first, next);
      ASSERT_LE(tiles.first, tiles.end);
      ASSERT_LE(tiles.end - tiles.first, work.unit_tiles);
      next = tiles.end;
    }
    ASSERT_EQ(next, work.tile_end);
    ASSERT_GE(work.row_tiles * shape.tile_tokens, lengths.q_len);
    ASSERT_GE(work.items * shape.tile_tokens * shape.tile_heads, heads * lengths.q_len);
    if (shape.is_invariant) {
      ASSERT_LE(work.units, kMaxSplits);
    }
    for (int token = 0; token < lengths.q_len; ++token) {
      if (keys.first(token) < keys.end(token)) {
        ASSERT_LE(work.tile_first * 64, keys.first(token));
        ASSERT_GE(work.tile_end * 64, keys.end(token));
      }
    }
  }
}

// ---- The plan

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

TEST(DecodePlan, FewItemsRunInClusters) {
  EXPECT_EQ(plan_of(problem(1, 8, 4096)).cluster, 8);
  EXPECT_EQ(plan_of(problem(3, 8, 4096)).cluster, 4);
  EXPECT_EQ(plan_of(problem(8, 8, 65536)).cluster, 2);  // on 128 of 132 SMs
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).cluster, 1);
  EXPECT_EQ(plan_of(problem(64, 8, 65536)).workers, kSms);
}

TEST(DecodePlan, ClustersShareLongItemsWhereSmsWouldIdle) {
  Problem p = problem(1, 8, 8192);
  EXPECT_EQ(plan_of(p).cluster, 2);  // eight for each of eight items; of eight blocks, one
  EXPECT_EQ(plan_of(problem(1, 1, 65536)).cluster, 8);  // 32 rows
  p = problem(1, 8, 65536);
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
  p.capacity = 8192;
  EXPECT_EQ(plan_of(p).cluster, 8);
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
