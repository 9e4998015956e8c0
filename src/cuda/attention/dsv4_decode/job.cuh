// What the producers of a block give its consumers to do: a stretch of a unit's key tiles, whose
// rows' places are known. Two jobs lie in SMEM, so that one is found while the other is done.
#pragma once

#include "cuda/attention/dsv4_decode/places.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kProducers = 2;  // warpgroups
inline constexpr int kProducerThreads = kProducers * kWarpgroupThreads;
inline constexpr int kProducerWarps = kProducerThreads / 32;
inline constexpr int kConsumerThreads = kConsumers * kWarpgroupThreads;
inline constexpr int kJobs = 2;
inline constexpr int kSlotsAtOnce = 5;  // that are merged while all are under way, at most

// Named barriers of the block. The last two, and a second one behind each, are dsv4_spread's.
enum Sync : std::uint32_t {
  kProducersSync = 1,
  kConsumersSync = 2,
  kTileSync = 3,
  kConsumerSync = 5,
};

template <int kThreads = kProducerThreads>
__device__ void sync_producers() {
  cutlass::arch::NamedBarrier::sync(kThreads, kProducersSync);
}
__device__ inline void sync_consumers() {
  cutlass::arch::NamedBarrier::sync(kConsumerThreads, kConsumersSync);
}

struct Job {
  Unit unit;
  Places places;
  float sinks[kRows];  // of the unit's rows, if the call has some
  int number;          // of the job, in the block
  int first_tile;      // of the item
  int end_tile;
  int share_end;  // of the block's share of the unit, of which the job is a stretch
  bool is_first;  // of the share, which may be without tiles
  bool is_last;
  bool leaves;  // The unit is shared, or a part of several: its results are merged later.
  int share;    // The block's, of a unit that is shared: 0 merges its pairs, others do not.
  // Where results go: share 0's in slot0, and behind it the others', of each pair from tile
  // slots_tile on; in `slots` slots together.
  int slot0;
  int slots;
  int slots_tile;
  // Counted through all of the block's jobs.
  int first_pair;
  int end_pair;
  int q_loads;
};

// Sets which of the unit's tiles the block has, and where results are left. One thread calls it.
__device__ inline void share(Job& job, const Launch& launch) {
  const Unit& unit = job.unit;
  const bool is_shared = launch.is_shared(unit.index);
  const int pairs = pairs_of_tiles(unit.end_tile - unit.first_tile);
  const int merged = is_shared ? merged_pairs(pairs, launch.shares, launch.pair_slots) : pairs;
  const int each = (pairs - merged + launch.other_shares - 1) / launch.other_shares;
  job.share = is_shared ? share_number(launch) : 0;
  const int first = job.share == 0 ? 0 : min(pairs, merged + (job.share - 1) * each);
  const int end = job.share == 0 ? merged : min(pairs, first + each);
  job.first_tile = min(unit.end_tile, unit.first_tile + first * kPairTiles);
  job.share_end = min(unit.end_tile, unit.first_tile + end * kPairTiles);
  job.leaves = is_shared || unit.parts > 1;
  job.slot0 = is_shared ? launch.shared_slot(unit.index) : unit.index;
  job.slots = 1 + pairs - merged;
  job.slots_tile = unit.first_tile + merged * kPairTiles;
}

// Copies the sink of a row, this thread's, asynchronously.
__device__ inline void copy_sink(Job& job, const Params& p, const Launch& launch) {
  const int thread = this_thread();
  if (p.sinks.logits != nullptr && thread < kRows) {
    const Row row = row_of(job.unit, launch.shape, thread);
    if (row.exists) {
      cute::SM80_CP_ASYNC_CACHEALWAYS<float>::copy(p.sinks.logits[row.head * p.sinks.stride],
                                                   job.sinks[thread]);
    }
  }
}

// A block's job 0 has neither keys nor rows. While the launch before may still run, consumers
// execute the code of a job's end for it, which is then in the SM's instruction caches, and store
// nothing. What they merge is whatever lies in the slots of the block's unit, which comes behind
// job 0. Where rows are few, what stores a row's values is not executed. One thread calls it.
__device__ inline void write_empty_job(Job& job, const Launch& launch) {
  job.unit.index = before_first();
  job.unit.tokens = 0;
  job.unit.heads = 0;
  job.number = 0;
  job.first_tile = 0;
  job.end_tile = 0;
  job.is_first = true;
  job.is_last = true;
  job.leaves = false;
  job.share = 0;
  job.slot0 = launch.are_clusters ? launch.shared_slot(unit_behind(launch, before_first())) : 0;
  job.slots = min(launch.pair_slots, kSlotsAtOnce);
  job.end_pair = 0;
  job.q_loads = 0;
}

// Where the results of a pair go that are left, whose first tile is `tile`.
__device__ inline int pair_slot(const Job& job, int tile) {
  return job.slot0 + 1 + whole_pairs(tile - job.slots_tile);
}

// The number of a tile's pair, counted through the block's jobs.
__device__ inline int pair_of(const Job& job, int tile) {
  return uniform(job.first_pair + whole_pairs(tile - job.first_tile));
}

// Which of the two places a job takes, and the phase of its barriers.
struct JobAt {
  int place;
  std::uint32_t phase;

  __device__ explicit JobAt(int number) : place(number % kJobs), phase(number / kJobs & 1) {}
};

// All lanes of a warp call it.
__device__ inline void copy_unit(Unit& to, const Unit& from) {
  static_assert(sizeof(Unit) % sizeof(int) == 0);
#pragma unroll 1
  for (unsigned i = this_thread() % 32; i < sizeof(Unit) / sizeof(int); i += 32) {
    reinterpret_cast<int*>(&to)[i] = reinterpret_cast<const int*>(&from)[i];
  }
}

// A warp says that what it has written to SMEM is there.
__device__ inline void arrive(cutlass::arch::ClusterBarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier.arrive();
  }
}

}  // namespace tilewright::cuda::dsv4
