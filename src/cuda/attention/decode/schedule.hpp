// How the decode kernel's work is dealt out. Host and device compute it alike.
//
//   item   a row tile: up to 64 rows, each a (new token, query head) pair, of one sequence and one
//          KV head; it needs the key tiles that its rows see
//   unit   a run of an item's key tiles: one tile or, if batch-invariant, a split or several. An
//          item begins with units that have no tile: they stand for the time that it takes beside
//          its tiles
//   part   what a worker computes of an item at once: a run of its units or, if batch-invariant,
//          one unit. The parts of an item are merged in their order
//
// The splits of a batch-invariant item follow from the sequence's own lengths, and so do its bits.
// Four splits are a bundle. A bundle's splits are merged one after the other, and then the bundles,
// whoever computes them: a block a bundle, the blocks of a cluster a split each or, where bundles
// are too few for all workers, a block a split.
//
// Units are numbered: sequence by sequence, in a sequence item by item. A share is a run of units.
// Each worker has one, so that every worker reads as many keys. A worker is a block or, for few
// items, a cluster of blocks, which share each part's key tiles. SMs do not read equally fast:
// where there are many short items, half of them are further shares, for workers that are done.
//
// The worker with an item's first unit merges its parts, when it has computed those of its own. It
// waits for workers with later shares. Those are blocks with smaller indices. GPUs start blocks in
// the order of their indices, although CUDA does not promise it: so no worker waits for one that
// has no place on an SM yet.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/attention_parts.hpp"
#include "common/ceil_div.hpp"
#include "common/divisor.hpp"
#include "cuda/attention/blocks/sequence_lengths.hpp"
#include "cuda/attention/decode/configs.hpp"

namespace tilewright::cuda {

// 1 / b, of a number from 1 up. On the device its last bit may be wrong: it is one instruction.
TILEWRIGHT_HOST_DEVICE constexpr float reciprocal(int b) {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(static_cast<float>(b)));
    return result;
  }
#endif
  return 1.0f / static_cast<float>(b);
}

// a / b rounded down, of numbers from 0 up whose quotient is below 2^21. A division of integers
// takes several times as long.
TILEWRIGHT_HOST_DEVICE constexpr int quotient(int a, int b) {
  const int q = static_cast<int>(static_cast<float>(a) * reciprocal(b));
  const int over = q * b > a;
  return q - over + ((q - over + 1) * b <= a);
}

TILEWRIGHT_HOST_DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }
TILEWRIGHT_HOST_DEVICE constexpr int most(int a, int b) { return a < b ? b : a; }

// The keys that a sequence's token sees: [first(token), end(token)).
struct CacheKeys {
  int kv_len;
  int diagonal;  // token i stands at key i + diagonal
  int left;
  int right;
  int leftpad;

  TILEWRIGHT_HOST_DEVICE constexpr int first(int token) const {
    return most(token + diagonal - left, leftpad);
  }
  TILEWRIGHT_HOST_DEVICE constexpr int end(int token) const {
    return least(most(token + diagonal + right + 1, 0), kv_len);
  }
};

// What all sequences' work has in common.
struct DecodeShape {
  int kv_heads;
  int group;            // query heads of a KV head
  Divisor tile_heads;   // of them in a row tile
  Divisor tile_tokens;  // new tokens in a row tile
  int head_blocks;      // row tiles that a group's heads take
  bool is_causal;
  KeyWindow window;
  bool is_invariant;
  int most_tokens;  // a sequence with more new tokens is another launch's

  TILEWRIGHT_HOST_DEVICE constexpr CacheKeys keys_of(const SequenceLengths& of) const {
    return {.kv_len = of.kv_len,
            .diagonal = of.kv_len - of.q_len,
            .left = window.left,
            .right = is_causal ? 0 : least(window.right, of.q_len),
            .leftpad = of.leftpad};
  }
};

// Key tiles [first, end).
struct TileRange {
  int first;
  int end;
};

// One sequence's work.
struct SequenceWork {
  int tile_first;  // some query sees key tiles [tile_first, tile_end)
  int tile_end;
  int row_tiles;    // of one head block
  int split_tiles;  // key tiles of a split, if batch-invariant
  int unit_tiles;   // key tiles of a unit
  int units;        // of each item: at least 1
  int items;
};

// Units without a tile with which an item begins, unless it is batch-invariant.
inline constexpr int kEmptyUnits = 2;

// Splits of a batch-invariant item: up to eight, of four tiles or more, or up to 16 of a long item.
inline constexpr int kBundle = 4;  // splits
inline constexpr int kMinSplitTiles = 4;
inline constexpr int kShortTiles = 128;  // an item with more is long
inline constexpr int kShortSplits = 8;
inline constexpr int kMaxSplits = 16;
inline constexpr int kMostSplitRowTiles = 4;  // of a sequence with more row tiles no item is split

TILEWRIGHT_HOST_DEVICE constexpr int split_tiles_of(int tiles, int row_tiles) {
  const int most_splits = tiles <= kShortTiles ? kShortSplits : kMaxSplits;
  return row_tiles > kMostSplitRowTiles ? most(tiles, 1)
                                        : most(ceil_div(tiles, most_splits), kMinSplitTiles);
}

TILEWRIGHT_HOST_DEVICE constexpr SequenceWork work_of(const DecodeShape& shape,
                                                      const SequenceLengths& of) {
  const CacheKeys keys = shape.keys_of(of);
  SequenceWork work{};
  work.tile_first = keys.first(0) / kDecodeTileKeys;
  work.tile_end = most(ceil_div(keys.end(of.q_len - 1), kDecodeTileKeys), work.tile_first);
  const int tiles = work.tile_end - work.tile_first;
  work.row_tiles = ceil_div(of.q_len, shape.tile_tokens);
  work.split_tiles = shape.is_invariant ? split_tiles_of(tiles, work.row_tiles) : 1;
  work.unit_tiles = work.split_tiles;
  work.units = shape.is_invariant ? most(quotient(tiles + work.unit_tiles - 1, work.unit_tiles), 1)
                                  : tiles + kEmptyUnits;
  work.items = work.row_tiles * shape.kv_heads * shape.head_blocks;
  return work;
}

// The same of a batch-invariant sequence, whose units are `splits` splits each.
TILEWRIGHT_HOST_DEVICE constexpr SequenceWork in_units_of(SequenceWork work, int splits) {
  work.unit_tiles *= splits;
  work.units = ceil_div(work.units, splits);
  return work;
}

// The key tiles of an item's units [first, end).
TILEWRIGHT_HOST_DEVICE constexpr TileRange tiles_of_units(const DecodeShape& shape,
                                                          const SequenceWork& work, int first,
                                                          int end) {
  const int empty = shape.is_invariant ? 0 : kEmptyUnits;
  return {.first = work.tile_first + most(first - empty, 0) * work.unit_tiles,
          .end = least(work.tile_first + most(end - empty, 0) * work.unit_tiles, work.tile_end)};
}

// Who computes: workers, which are blocks or clusters of blocks.
struct Workers {
  Divisor count;
  int cluster_log2;  // log2 of the blocks of a worker
  int merge_tiles;   // key tiles that a block computes in the time in which parts are merged; 0 if
                     // there are parts even of whole items
  bool may_take;     // a worker that is done may take further shares

  TILEWRIGHT_HOST_DEVICE constexpr int cluster() const { return 1 << cluster_log2; }
};

// The splits of a batch-invariant unit, where all items together have so many splits and bundles. A
// cluster's unit is a bundle or, of a cluster of eight blocks, a whole item. A block's unit is a
// bundle where that makes no worker much later, and else a split.
TILEWRIGHT_HOST_DEVICE constexpr int splits_of_unit(int splits, int bundles, const Workers& of) {
  if (of.cluster_log2 > 0) {
    return most(of.cluster(), kBundle);
  }
  const int bundled = ceil_div(bundles, of.count) * kBundle;  // splits of the last worker
  return 8 * bundled <= 9 * ceil_div(splits, of.count) ? kBundle : 1;
}

// How units are shared out. Items that all have the same number of units stay whole where the time
// that is lost since some workers have less to do is shorter than a merge of parts. Where workers
// share an item, they share no other, if that costs little.
class UnitShares {
 public:
  // `most_units` is the largest item's.
  TILEWRIGHT_HOST_DEVICE constexpr UnitShares(int units, int items, int most_units,
                                              const Workers& of)
      : count_(of.count), units_(units) {
    if (units == 0) {
      return;
    }
    const int each = ceil_div(items, of.count);  // whole items of a worker
    const bool are_equal = std::int64_t{items} * most_units == units;
    const bool are_taken = are_equal && of.may_take && items >= kLeastItems * of.count &&
                           most_units >= kLeastTaken && most_units <= kMostTaken;
    const bool are_whole =
        are_taken ||
        (are_equal && each * most_units <= units / of.count + (of.merge_tiles << of.cluster_log2));
    grain_ = are_whole ? most_units : 1;
    further_ = are_taken ? items / 2 : 0;
    const int grains = are_whole ? items - further_ : units;
    workers_ = least(are_whole ? grains : (units + of.cluster() - 1) >> of.cluster_log2, of.count);
    if (are_equal && !are_whole && items <= workers_) {
      const int sharing = quotient(workers_, items) * items;
      const bool cost_little =
          quotient(units, sharing) <= quotient(units, workers_) + (kPartTiles << of.cluster_log2);
      workers_ = cost_little ? sharing : workers_;
    }
    step_ = of_workers(grains);
    rest_ = grains - step_ * workers_;
  }

  // How many workers there is work for: no worker before this one goes without.
  TILEWRIGHT_HOST_DEVICE constexpr int workers() const { return workers_; }

  // The share of the worker whose blocks come `index`-th: the last share is the first one's.
  TILEWRIGHT_HOST_DEVICE constexpr int share_of(int index) const { return workers_ - 1 - index; }

  // Further shares, which are items, and are numbered from workers() on.
  TILEWRIGHT_HOST_DEVICE constexpr int further() const { return further_; }

  // The first unit of share s, from 0 to workers() + further().
  TILEWRIGHT_HOST_DEVICE constexpr int begin(int s) const {
    const int w = least(s, workers_);
    return grain_ * (w * step_ + (rest_ == 0 ? 0 : of_workers(w * rest_)) + s - w);
  }

  // The share that has unit u, where items are not whole. The estimate is at most 1 off.
  TILEWRIGHT_HOST_DEVICE constexpr int share_with(int u) const {
    const float per_unit = static_cast<float>(workers_) * reciprocal(units_);
    int w = least(static_cast<int>((static_cast<float>(u) + 0.5f) * per_unit), workers_ - 1);
    w -= begin(w) > u;
    return w + (begin(w + 1) <= u);
  }

 private:
  // Key tiles that a block computes in the time that a second part takes.
  static constexpr int kPartTiles = 2;
  // There are further shares where items are so many for each worker, and have so many units.
  static constexpr int kLeastItems = 2;
  static constexpr int kLeastTaken = 8;
  static constexpr int kMostTaken = 32;

  // a / workers_
  TILEWRIGHT_HOST_DEVICE constexpr int of_workers(int a) const {
    return workers_ == count_ ? a / count_ : quotient(a, workers_);
  }

  Divisor count_;
  int units_;
  int further_ = 0;
  int workers_ = 0;
  int grain_ = 1;  // units that stay together
  int step_ = 0;
  int rest_ = 0;
};

// The key tiles of a part that block `rank` of a cluster of 2^size_log2 computes.
TILEWRIGHT_HOST_DEVICE constexpr TileRange tiles_of_block(const TileRange& of, int rank,
                                                          int size_log2) {
  const int tiles = of.end - of.first;
  return {.first = of.first + (tiles * rank >> size_log2),
          .end = of.first + (tiles * (rank + 1) >> size_log2)};
}

// Where an item's parts leave their partial results, and which part this one is.
struct PartPlace {
  int parts;        // of the item; 1: nothing is to be merged
  int index;        // of this part
  bool is_split;    // the item's parts are splits, which are merged to bundles first
  bool merges;      // its worker merges all parts; each other part is left in its slot
  bool is_awaited;  // by another worker, which merges it
  int slot0;        // part i's slot is slot0 + i
};

// A share has one slot: for the part with which it begins, if that is not an item's first. The
// first one merges. `first_unit` is the item's first.
TILEWRIGHT_HOST_DEVICE constexpr PartPlace place_of_share(const UnitShares& shares, int share,
                                                          int first_unit, int units) {
  const int first = shares.share_with(first_unit);
  const int last = shares.share_with(first_unit + units - 1);
  return {.parts = last - first + 1,
          .index = share - first,
          .is_split = false,
          .merges = share == first,
          .is_awaited = share != first,
          .slot0 = first};
}

// If batch-invariant, each unit has a slot. The share with an item's first unit merges after the
// last unit that it has of the item. `unit` counts from the item's first.
TILEWRIGHT_HOST_DEVICE constexpr PartPlace place_of_unit(const UnitShares& shares, int share,
                                                         int first_unit, int units, int unit,
                                                         bool is_split) {
  const bool is_last = unit + 1 == units || first_unit + unit + 1 == shares.begin(share + 1);
  return {.parts = units,
          .index = unit,
          .is_split = is_split,
          .merges = is_last && first_unit >= shares.begin(share),
          .is_awaited = first_unit < shares.begin(share),
          .slot0 = first_unit};
}

}  // namespace tilewright::cuda
