// A warp finds the parts that its block computes, from the lengths in memory.
#pragma once

#include "cuda/attention/decode/config.cuh"
#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {
namespace decode {

// The call's shape. Whether it is batch-invariant is known at compile time.
template <bool kIsInvariant>
__device__ inline DecodeShape shape_of(const Launch& launch) {
  DecodeShape shape = launch.shape;
  shape.is_invariant = kIsInvariant;
  return shape;
}

// Walks over the sequences, 32 at a time: each lane has one. In a rehearsal it reads no lengths,
// and takes each sequence to have one key.
template <bool kIsInvariant>
class Walk {
 public:
  __device__ Walk(const Params& p, const Launch& launch, bool is_rehearsal)
      : p_(p), launch_(launch), is_rehearsal_(is_rehearsal), shares_(0, 0, 0, launch.workers) {
    int units = 0;
    int bundles = 0;
    int items = 0;
    int most_units = 0;
    for (; first_ < p_.batch; first_ += 32) {
      look_up();
      units += work_.units * work_.items;
      bundles += ceil_div(work_.units, kBundle) * work_.items;
      items += work_.items;
      most_units = max(most_units, work_.units);
    }
    units = __reduce_add_sync(kAll, units);
    items = __reduce_add_sync(kAll, items);
    most_units = __reduce_max_sync(kAll, most_units);
    Workers workers = launch_.workers;
    if constexpr (kIsInvariant) {
      bundles = __reduce_add_sync(kAll, bundles);
      unit_splits_ = splits_of_unit(units, bundles, workers);
      workers.cluster_log2 = 0;  // a unit is one worker's
      work_ = in_units_of(work_, unit_splits_);
      most_units = ceil_div(most_units, unit_splits_);
      units = unit_splits_ == 1 ? units : unit_splits_ == kBundle ? bundles : items;
    }
    shares_ = UnitShares(units, items, most_units, workers);
    first_ = 0;
    if (p_.batch > 32) {
      look_up();
    }
    count();
  }

  __device__ const UnitShares& shares() const { return shares_; }
  __device__ int unit_splits() const { return unit_splits_; }

  // Calls write() on the lane whose sequence has unit `unit`, which is at or after that of the call
  // before. All lanes call it.
  template <typename Write>
  __device__ void at(int unit, const Write& write) {
    while (unit >= __shfl_sync(kAll, upto_, 31)) {
      before_ = __shfl_sync(kAll, upto_, 31);
      first_ += 32;
      look_up();
      count();
    }
    const int before = upto_ - work_.units * work_.items;
    if (unit >= before && unit < upto_) {
      write(first_ + static_cast<int>(threadIdx.x) % 32, lengths_, work_, unit - before);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // Looks up what this lane's sequence has, of the 32 from first_ on.
  __device__ void look_up() {
    const int lane = threadIdx.x % 32;
    work_ = {};
    if (first_ + lane < p_.batch) {
      lengths_ = is_rehearsal_
                     ? SequenceLengths{.q_start = 0, .q_len = 1, .kv_len = 1, .leftpad = 0}
                     : lengths_of(p_, first_ + lane);
      if (lengths_.q_len > 0 && lengths_.q_len <= launch_.shape.most_tokens) {
        work_ = work_of(shape_of<kIsInvariant>(launch_), lengths_);
        if constexpr (kIsInvariant) {
          work_ = in_units_of(work_, unit_splits_);
        }
      }
    }
  }

  // Counts these sequences' units.
  __device__ void count() {
    const int lane = threadIdx.x % 32;
    upto_ = work_.units * work_.items;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, upto_, step);
      upto_ += lane >= step ? other : 0;
    }
    upto_ += before_;
  }

  const Params& p_;
  const Launch& launch_;
  const bool is_rehearsal_;
  int unit_splits_ = 1;        // of a batch-invariant item
  int first_ = 0;              // sequence of lane 0
  int before_ = 0;             // units before it
  SequenceLengths lengths_{};  // of this lane's sequence
  SequenceWork work_{};
  int upto_ = 0;  // units up to the end of this lane's sequence
  UnitShares shares_;
};

// Narrows a bundle's key tiles to split `split` or, in a cluster, to the block's own one. Returns
// how many splits come one after the other.
__device__ inline int narrow_to_split(TileRange& tiles, int split_tiles, int split,
                                      const Launch& launch) {
  const bool is_cluster = launch.workers.cluster_log2 > 0;
  const int splits = is_cluster ? 1 : max(ceil_div(tiles.end - tiles.first, split_tiles), 1);
  const int first = tiles.first + (is_cluster ? rank_in(launch) : split) * split_tiles;
  tiles = {.first = min(first, tiles.end), .end = min(first + split_tiles, tiles.end)};
  return splits;
}

// Writes the part that begins with unit `at` of the sequence's units, `unit` of all, and ends with
// share `share` at the latest; of a bundle, its split `split`. Returns how many units it has, or 0
// if more splits follow.
template <bool kIsInvariant>
__device__ inline int write_part(Part& part, const Params& p, const Launch& launch,
                                 const Walk<kIsInvariant>& walk, int sequence,
                                 const SequenceLengths& lengths, const SequenceWork& work, int at,
                                 int unit, int share, int split) {
  const DecodeShape shape = shape_of<kIsInvariant>(launch);
  const UnitShares& shares = walk.shares();
  const int item = quotient(at, work.units);
  const int first = at - item * work.units;  // unit of the item
  const int units = kIsInvariant ? 1 : min(work.units - first, shares.begin(share + 1) - unit);
  const int head_block = work.row_tiles == 1 ? item : item / work.row_tiles;
  const int kv_head = shape.head_blocks == 1 ? head_block : head_block / shape.head_blocks;
  const int head_in_group = (head_block - kv_head * shape.head_blocks) * shape.tile_heads;
  part.lengths = lengths;
  part.sequence = sequence;
  part.kv_head = kv_head;
  part.first_head = kv_head * shape.group + head_in_group;
  part.heads = min(shape.group - head_in_group, static_cast<int>(shape.tile_heads));
  part.token0 = (item - head_block * work.row_tiles) * shape.tile_tokens;
  part.tokens = min(lengths.q_len - part.token0, shape.tile_tokens);

  const CacheKeys keys = shape.keys_of(lengths);
  const int last = part.token0 + part.tokens - 1;
  part.first = keys.first(part.token0);
  part.end = keys.end(last);
  part.whole_first = keys.first(last);
  part.whole_end = min(keys.end(part.token0), p.tree.bits != nullptr ? keys.diagonal : keys.kv_len);
  TileRange tiles = tiles_of_units(shape, work, first, first + units);
  if constexpr (kIsInvariant) {
    part.split = split;
    part.splits =
        walk.unit_splits() > 1 ? narrow_to_split(tiles, work.split_tiles, split, launch) : 1;
  }
  tiles.first = max(tiles.first, part.first / kDecodeTileKeys);
  tiles.end = max(min(tiles.end, ceil_div(part.end, kDecodeTileKeys)), tiles.first);
  part.tiles = kIsInvariant || launch.workers.cluster_log2 == 0
                   ? tiles
                   : tiles_of_block(tiles, rank_in(launch), launch.workers.cluster_log2);
  part.seen_first = keys.first(0);
  part.seen_end = keys.end(lengths.q_len - 1);
  if constexpr (kIsInvariant) {
    part.place =
        place_of_unit(shares, share, unit - first, work.units, first, walk.unit_splits() == 1);
  } else if (units == work.units) {
    part.place = {.parts = 1, .merges = true};
  } else {
    part.place = place_of_share(shares, share, unit - first, work.units);
  }
  part.is_end = false;
  return kIsInvariant && split + 1 < part.splits ? 0 : units;
}

// Calls visit() with an address in each line of 128 bytes in which lengths of the first 1,024
// sequences lie. A warp calls it.
template <typename Visit>
__device__ __forceinline__ void for_each_line_of_lengths(const Params& p, const Visit& visit) {
  const int first = static_cast<int>(threadIdx.x) % 32 * 32;
  if (first < p.batch) {
    for (const int* const lengths : {p.rows.cache_seqlens, p.packed_q.cu_seqlens, p.rows.leftpad}) {
      if (lengths != nullptr) {
        visit(lengths + first);
      }
    }
  }
}

// Brings them to L2 while the launch before may still write them.
__device__ inline void prefetch_lengths_to_l2(const Params& p) {
  for_each_line_of_lengths(
      p, [](const int* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); });
}

// Asks for them, so that a walk would find them in L1. ptxas drops these loads, as their values are
// not used.
__device__ inline void prefetch_lengths(const Params& p) {
  for_each_line_of_lengths(p, [](const int* line) {
    asm volatile("{.reg .b32 unused; ld.global.b32 unused, [%0];}" ::"l"(line));
  });
}

// Puts a part without keys and without rows into the ring, ahead of all others. It has no results.
// The consumer executes the code of a part's end for it, which is then in the SM's instruction
// caches before the first key has come; with 0 parts, that includes a merge of parts. One thread
// calls it.
__device__ inline void put_empty_part(PartRing& ring) {
  Part part{};
  part.tokens = 1;
  part.splits = 1;
  part.lengths.q_len = 1;
  part.place = {.parts = 0, .merges = true};
  ring.tiles[0] = part;
  ring.put({});
}

// Takes the next of the further shares: 0, 1, 2 ... Once there are none left, each worker gets one
// more number; the last of these clears the tickets for the next replay. A warp calls it.
__device__ inline int take_share(const UnitShares& shares, const Launch& launch) {
  const TicketCounter tickets{.word = launch.tickets, .epoch = launch.epoch};
  int ticket = 0;
  if (threadIdx.x % 32 == 0) {
    ticket = tickets.take();
    if (ticket == shares.further() + shares.workers() - 1) {
      tickets.clear();
    }
  }
  return __shfl_sync(0xffffffffu, ticket, 0);
}

// Puts all parts of the block into the ring, behind the empty one. A warp calls it. The first part
// is written before wait_for_ring(), which waits until the ring is set up. With `rehearsed`,
// another warp executes the same code ahead, only to bring it to the SM's instruction caches: it
// writes a first part there, and does nothing else.
template <typename Config, typename WaitForRing>
__device__ __forceinline__ void find_parts(SharedStorage<Config>& shared, const Params& p,
                                           const Launch& launch, Part* rehearsed,
                                           const WaitForRing& wait_for_ring) {
  PartRing& ring = shared.parts;
  const bool is_rehearsal = rehearsed != nullptr;
  if (p.batch > 32 && !is_rehearsal) {
    prefetch_lengths(p);
  }
  Walk<Config::kIsInvariant> walk(p, launch, is_rehearsal);
  const UnitShares& shares = walk.shares();
  int share = shares.share_of(static_cast<int>(blockIdx.x) >> launch.workers.cluster_log2);
  const bool has_work = share >= 0;
  int end = has_work ? shares.begin(share + 1) : 0;
  int unit = has_work ? shares.begin(share) : 0;
  const bool may_take = Config::kMayTake && has_work && shares.further() > 0;
  int split = 0;  // of a bundle
  PartRing::Position at;
  std::uint32_t asked = 0;
  for (bool is_end = false, is_first = true; !is_end; is_first = false) {
    if (may_take && unit >= end) {
      shared.asked.wait(asked++ & 1);
      share = shares.workers() + take_share(shares, launch);
      if (share < shares.workers() + shares.further()) {
        unit = shares.begin(share);
        end = shares.begin(share + 1);
      }
    }
    at.advance();
    if (!is_first) {
      ring.acquire(at);
    }
    Part& part = is_rehearsal ? *rehearsed : ring.tiles[at.stage];
    bool has_written = false;  // this lane
    is_end = unit >= end;
    if (is_end) {
      has_written = threadIdx.x % 32 == 0;
      if (has_written) {
        part.is_end = true;
      }
    } else {
      int units = 0;
      walk.at(unit, [&](int sequence, const SequenceLengths& lengths, const SequenceWork& of,
                        int unit_of_sequence) {
        units = write_part(part, p, launch, walk, sequence, lengths, of, unit_of_sequence, unit,
                           share, split);
        part.cache_row = is_rehearsal ? 0 : cache_row_of(p, sequence);
        part.asks = may_take && unit + units >= end;
        has_written = true;
      });
      units = __reduce_max_sync(0xffffffffu, units);
      unit += units;
      if constexpr (Config::kIsInvariant) {
        split = units == 0 ? split + 1 : 0;
      }
    }
    if (is_rehearsal) {
      break;
    }
    if (is_first) {
      wait_for_ring();
    }
    if (has_written) {
      ring.put(at);
    }
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
