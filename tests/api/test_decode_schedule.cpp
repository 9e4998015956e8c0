// How the decode kernel's work is dealt out, which is computed without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/decode/schedule.hpp"

namespace tilewright::cuda {
namespace {

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

}  // namespace
}  // namespace tilewright::cuda
