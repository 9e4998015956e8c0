// One warp finds the parts that its block computes, from the lengths in memory.
#pragma once

#include "cuda/attention/decode/config.cuh"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {
namespace decode {

using Params = AttentionWithKvCacheParams;

// A sequence's lengths. Values out of range become the nearest in range.
__device__ inline SequenceLengths lengths_of(const Params& p, int sequence) {
  SequenceLengths lengths{.q_start = 0, .q_len = p.q_len, .kv_len = 0, .leftpad = 0};
  if (p.packed_q.cu_seqlens != nullptr) {
    lengths.q_start = p.packed_q.cu_seqlens[sequence];
    lengths.q_len = p.packed_q.cu_seqlens[sequence + 1] - lengths.q_start;
  }
  lengths.kv_len = min(max(p.rows.cache_seqlens[sequence], 0), p.rows.capacity);
  if (p.rows.leftpad != nullptr) {
    lengths.leftpad = min(max(p.rows.leftpad[sequence], 0), lengths.kv_len);
  }
  return lengths;
}

__device__ inline int cache_row_of(const Params& p, int sequence) {
  return p.rows.cache_batch_idx != nullptr ? p.rows.cache_batch_idx[sequence] : sequence;
}

// Walks over the sequences, 32 at a time: each lane has one.
class Walk {
 public:
  __device__ Walk(const Params& p, const Launch& launch) : p_(p), launch_(launch) {
    int total = 0;
    for (first_ = 0; first_ < p.batch; first_ += 32) {
      before_ = total;
      count();
      total = __shfl_sync(kAll, upto_, 31);
    }
    total_ = total;
    if (p.batch > 32) {
      first_ = 0;
      before_ = 0;
      count();
    } else {
      first_ = 0;
    }
  }

  __device__ int total() const { return total_; }

  // Calls write(lane's view) on the lane whose sequence has unit `unit`, which is at or after that
  // of the call before. All lanes call it.
  template <typename Write>
  __device__ void at(int unit, const Write& write) {
    while (unit >= __shfl_sync(kAll, upto_, 31)) {
      before_ = __shfl_sync(kAll, upto_, 31);
      first_ += 32;
      count();
    }
    const bool is_mine = unit < upto_ && unit >= upto_ - work_.units * work_.items;
    if (is_mine) {
      write(first_ + static_cast<int>(threadIdx.x) % 32, lengths_, work_,
            unit - (upto_ - work_.units * work_.items));
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
      if (lengths_.q_len > 0) {
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
  int first_ = 0;   // sequence of lane 0
  int before_ = 0;  // units before it
  int total_ = 0;
  SequenceLengths lengths_{};  // of this lane's sequence
  SequenceWork work_{};
  int upto_ = 0;  // units up to the end of this lane's sequence
};

// Writes the part that begins with unit `at` of the sequence's units, `unit` of all, and ends
// before `end` at the latest. Returns how many units it has.
__device__ inline int write_part(Part& part, const Params& p, const Launch& launch,
                                 const UnitShares& shares, int sequence,
                                 const SequenceLengths& lengths, const SequenceWork& work, int at,
                                 int unit, int end) {
  const DecodeShape& shape = launch.shape;
  const int item = at / work.units;
  const int first = at - item * work.units;  // unit of the item
  const int units = shape.is_invariant ? 1 : min(work.units - first, end - unit);
  const int row_tile = item % work.row_tiles;
  const int head_block = item / work.row_tiles;
  part.lengths = lengths;
  part.sequence = sequence;
  part.cache_row = cache_row_of(p, sequence);
  part.kv_head = head_block / shape.head_blocks;
  const int head_in_group = (head_block - part.kv_head * shape.head_blocks) * shape.tile_heads;
  part.first_head = part.kv_head * shape.group + head_in_group;
  part.heads = min(shape.group - head_in_group, static_cast<int>(shape.tile_heads));
  part.token0 = row_tile * shape.tile_tokens;
  part.tokens = min(lengths.q_len - part.token0, shape.tile_tokens);

  const CacheKeys keys = shape.keys_of(lengths);
  const int tile_first = work.tile_first + first * work.unit_tiles;
  const int tile_end = min(tile_first + units * work.unit_tiles, work.tile_end);
  part.tile_first = max(tile_first, keys.first(part.token0) / shape.bc);
  part.tile_end = max(min(tile_end, ceil_div(keys.end(part.token0 + part.tokens - 1), shape.bc)),
                      part.tile_first);
  part.seen_first = keys.first(0);
  part.seen_end = keys.end(lengths.q_len - 1);
  if (units == work.units) {
    part.place = {.parts = 1};
  } else if (shape.is_invariant) {
    part.place = place_of_unit(unit - first, work.units, first);
  } else {
    part.place = place_of_share(shares, static_cast<int>(blockIdx.x), unit - first, work.units);
  }
  return units;
}

// Puts the block's parts into the ring, and then one that says that there are no more.
template <typename Config>
__device__ void schedule(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  Walk walk(p, launch);
  const UnitShares shares(walk.total(), launch.workers);
  const int worker = blockIdx.x;
  const bool has_work = worker < shares.workers();
  const int end = has_work ? shares.begin(worker + 1) : 0;
  PartRing::Position at;
  int unit = has_work ? shares.begin(worker) : 0;
  while (unit < end) {
    Part& part = shared.parts.acquire(at);
    int units = 0;
    walk.at(unit, [&](int sequence, const SequenceLengths& lengths, const SequenceWork& work,
                      int unit_of_sequence) {
      units =
          write_part(part, p, launch, shares, sequence, lengths, work, unit_of_sequence, unit, end);
      part.is_end = false;
      shared.parts.put(at);
    });
    unit += __reduce_max_sync(0xffffffffu, units);
    at.advance();
  }
  Part& part = shared.parts.acquire(at);
  if (threadIdx.x % 32 == 0) {
    part.is_end = true;
    shared.parts.put(at);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
