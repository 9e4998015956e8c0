// Twins and their producers. Twins are two blocks of a cluster whose items are heads of the same
// tokens, so that they have the same keys. Each loads and widens half of each tile's rows, and TMA
// copies them to the other's SMEM. A warp takes eight keys of a tile, four lanes a key.
//
//   tile t       locate t + 2 | widen 0 | quarters 0 1 2 3 | load t + 2
//   quarter q    wait until it is given back | store q | widen q + 1 | send q
//
// So the rows of a run's tiles, but for the first one, are in registers before their place is free.
// Both blocks give a quarter back before either fills it.
#pragma once

#include "cuda/attention/dsv4_decode/held_row.cuh"
#include "cuda/common/cluster.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kTwinKeys = kTileKeys / kTwins;  // of a tile, that each loads
static_assert(kTwinKeys == kTileWarps * kPassKeys);

// A consumer's warp has read a quarter, which twins fill together.
template <bool kIsTwin>
__device__ void give_back(cutlass::arch::ClusterBarrier& empty) {
  if constexpr (kIsTwin) {
    __syncwarp();
    if (threadIdx.x % 32 < kTwins) {
      empty.arrive(threadIdx.x % 32);
    }
  } else {
    arrive(empty);
  }
}

// A lane's share of a row on its way to both blocks.
template <KvRowFormat kFormat>
class TwinRow : public HeldRow<kFormat, KeyTile, TwinRow<kFormat>> {
  using Base = HeldRow<kFormat, KeyTile, TwinRow>;
  using Base::job_, Base::to_;

 public:
  using Base::Base;

  // Finds where the row of a tile lies, and brings it to L2. From tile `end` on there is none.
  __device__ __forceinline__ void locate(int tile, int end) const {
    const RowAt row = Base::template find<true>(tile, end, first_key() + this_thread() % 32 / 4);
    RowAt& to = located(tile);
    __syncwarp();  // all lanes have read what was there
    if (this_thread() % 4 == 0) {
      to = row;
    }
    __syncwarp();
  }

  __device__ RowAt& located(int tile) const {
    const int set = pair_of(job_, tile) & 1;
    return to_.located()[set * kTwinKeys + this_thread() % kWarpgroupThreads / 4];
  }
  __device__ __forceinline__ void put(int block, const SixteenValues& values) const {
    LanePlace(column_block(0), first_key()).store(block, 0, values);
  }
  // Gives a quarter that the warp has stored to both blocks. The other one sends as much of it. One
  // thread issues both copies: two would do so by turns, which takes longer.
  __device__ __forceinline__ void give(int quarter) const {
    constexpr int kRow_bytes = kBlockDims * sizeof(Element);
    const int lane = this_thread() % 32;
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (cute::elect_one_sync()) {
      const int other = 1 - block_rank();
      const RemoteBarrier full(to_.full(quarter), other);
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        copy_to_block(column_block(block_of_quarter(quarter, i)) + first_key() * kBlockDims, other,
                      kPassKeys * kRow_bytes, full);
      }
    }
    if (this_thread() % kWarpgroupThreads == 0) {
      to_.full(quarter).arrive_and_expect_tx(kTwinKeys * kConsumers * kRow_bytes);
    } else if (lane == 0) {
      to_.full(quarter).arrive();
    }
  }

 private:
  __device__ Element* column_block(int block) const {
    return to_.keys.tiles[KeyTile::number()][block];
  }

  // The first key of the warp.
  __device__ static int first_key() {
    return block_rank() * kTwinKeys + this_thread() / 32 % kTileWarps * kPassKeys;
  }
};

// A producer brings its tiles of a job.
template <int kFormats>
__device__ __forceinline__ void produce_for_twins(const KeyTile& to, const Params& p,
                                                  const Launch& launch, const Job& job) {
  int tile = uniform(job.first_tile + KeyTile::number());
  while (tile < uniform(job.end_tile)) {
    const int end = run_end<kFormats>(p, job, tile);
    with_format<kFormats>(format_of<kFormats>(p, tile_at(job.unit, tile).source), [&](auto format) {
      TwinRow<format.value> row(to, p, launch, job);
      row.locate(tile, end);
      row.load(tile);
#pragma unroll 1
      for (; tile < end; tile += kPairTiles) {
        row.locate(tile + kPairTiles, end);
        row.store(tile);
        row.load(tile + kPairTiles);
      }
    });
  }
  pass_absent(to, job, tile);
}

}  // namespace tilewright::cuda::dsv4
