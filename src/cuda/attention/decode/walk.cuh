// A warp finds the parts that its block computes, from the lengths in memory.
#pragma once

#include "cuda/attention/decode/config.cuh"

namespace tilewright::cuda {
namespace decode {

// Walks over the sequences, 32 at a time: each lane has one.
class Walk {
 public:
  __device__ Walk(const Params& p, const Launch& launch) : p_(p), launch_(launch) {
    int units = 0;
    int items = 0;
    int most_units = 0;
    for (; first_ < p.batch; first_ += 32) {
      before_ = units;
      count();
      units = __shfl_sync(kAll, upto_, 31);
      items += __reduce_add_sync(kAll, work_.items);
      most_units = max(most_units, __reduce_max_sync(kAll, work_.units));
    }
    shares_ = UnitShares(units, items, most_units, launch.workers);
    first_ = 0;
    if (p.batch > 32) {
      before_ = 0;
      count();
    }
  }

  __device__ const UnitShares& shares() const { return shares_; }

  // Calls write() on the lane whose sequence has unit `unit`, which is at or after that of the call
  // before. All lanes call it.
  template <typename Write>
  __device__ void at(int unit, const Write& write) {
    while (unit >= __shfl_sync(kAll, upto_, 31)) {
      before_ = __shfl_sync(kAll, upto_, 31);
      first_ += 32;
      count();
    }
    const int before = upto_ - work_.units * work_.items;
    if (unit >= before && unit < upto_) {
      write(first_ + static_cast<int>(threadIdx.x) % 32, lengths_, work_, unit - before);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // Counts the units of the sequences from first_ on.
  __device__ void count() {
    const int lane = threadIdx.x % 32;
    work_ = {};
    if (first_ + lane < p_.batch) {
      lengths_ = lengths_of(p_, first_ + lane);
      if (lengths_.q_len > 0 && lengths_.q_len <= launch_.shape.most_tokens) {
        work_ = work_of(launch_.shape, lengths_);
      }
    }
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
  int first_ = 0;              // sequence of lane 0
  int before_ = 0;             // units before it
  SequenceLengths lengths_{};  // of this lane's sequence
  SequenceWork work_{};
  int upto_ = 0;  // units up to the end of this lane's sequence
  UnitShares shares_{0, 0, 0, {}};
};

// Writes the part that begins with unit `at` of the sequence's units, `unit` of all, and ends
// before `end` at the latest. Returns how many units it has.
__device__ inline int write_part(Part& part, const Params& p, const Launch& launch,
                                 const UnitShares& shares, int sequence,
                                 const SequenceLengths& lengths, const SequenceWork& work, int at,
                                 int unit, int end) {
  const DecodeShape& shape = launch.shape;
  const int item = quotient(at, work.units);
  const int first = at - item * work.units;  // unit of the item
  const int units = shape.is_invariant ? 1 : min(work.units - first, end - unit);
  const int head_block = work.row_tiles == 1 ? item : item / work.row_tiles;
  const int kv_head = shape.head_blocks == 1 ? head_block : head_block / shape.head_blocks;
  const int head_in_group = (head_block - kv_head * shape.head_blocks) * shape.tile_heads;
  part.lengths = lengths;
  part.sequence = sequence;
  part.cache_row = cache_row_of(p, sequence);
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
  const int tile_first = work.tile_first + first * work.unit_tiles;
  TileRange tiles{.first = max(tile_first, part.first / kDecodeTileKeys),
                  .end = min(min(tile_first + units * work.unit_tiles, work.tile_end),
                             ceil_div(part.end, kDecodeTileKeys))};
  tiles.end = max(tiles.end, tiles.first);
  part.tiles = launch.workers.cluster == 1
                   ? tiles
                   : share_of(tiles, rank_in(launch), launch.workers.cluster);
  part.seen_first = keys.first(0);
  part.seen_end = keys.end(lengths.q_len - 1);
  if (units == work.units) {
    part.place = {.parts = 1};
  } else if (shape.is_invariant) {
    part.place = place_of_unit(unit - first, work.units, first);
  } else {
    const int worker = static_cast<int>(blockIdx.x) / launch.workers.cluster;
    part.place = place_of_share(shares, worker, unit - first, work.units);
  }
  part.is_end = false;
  return units;
}

// Asks for the lengths of 1,024 sequences, so that find_parts() finds them in L1. A warp calls it.
__device__ inline void prefetch_lengths(const Params& p) {
  const int first = static_cast<int>(threadIdx.x) % 32 * 32;  // a line of 128 bytes
  if (first < p.batch) {
    for (const int* const lengths : {p.rows.cache_seqlens, p.packed_q.cu_seqlens, p.rows.leftpad}) {
      if (lengths != nullptr) {
        asm volatile("{.reg .b32 unused; ld.global.b32 unused, [%0];}" ::"l"(lengths + first));
      }
    }
  }
}

// Puts the parts that the block computes into the ring. A whole warp calls it.
__device__ inline void find_parts(PartRing& ring, const Params& p, const Launch& launch) {
  Walk walk(p, launch);
  const UnitShares& shares = walk.shares();
  const int worker = static_cast<int>(blockIdx.x) / launch.workers.cluster;
  const bool has_work = worker < shares.workers();
  const int end = has_work ? shares.begin(worker + 1) : 0;
  PartRing::Position at;
  for (int unit = has_work ? shares.begin(worker) : 0; unit < end;) {
    Part& part = ring.acquire(at);
    int units = 0;
    walk.at(unit, [&](int sequence, const SequenceLengths& lengths, const SequenceWork& of,
                      int unit_of_sequence) {
      units =
          write_part(part, p, launch, shares, sequence, lengths, of, unit_of_sequence, unit, end);
      ring.put(at);
    });
    unit += __reduce_max_sync(0xffffffffu, units);
    at.advance();
  }
  Part& part = ring.acquire(at);
  if (threadIdx.x % 32 == 0) {
    part.is_end = true;
    ring.put(at);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
