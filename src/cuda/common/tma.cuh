// TMA: one thread asks for a tile, and a barrier in SMEM tells when its bytes are there. And rings
// of stages between the warps that load and those that compute.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

namespace tilewright::cuda {

// An mbarrier counts arrivals and bytes; its phase flips whenever it completes.
using TmaBarrier = cutlass::arch::ClusterTransactionBarrier;

// Loads rows [row, row + kRows) of one head, kHeadDim columns, into `tile`. Each TMA load brings
// kBoxColumns columns, which lie together in SMEM. One thread calls this, after
// barrier.arrive_and_expect_tx(bytes).
template <int kRows, int kHeadDim, int kBoxColumns, typename T>
__device__ __forceinline__ void tma_load_tile(const CUtensorMap& map, TmaBarrier& barrier, T* tile,
                                              int row, int head, int batch) {
  static_assert(kHeadDim % kBoxColumns == 0);
  constexpr auto kNoHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
  for (int column = 0; column < kHeadDim; column += kBoxColumns) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&barrier), kNoHint,
                                 tile + column * kRows, column, row, head, batch);
  }
}

// Like tma_load_tile, but it loads into the same place of every block of a cluster of kCluster.
// Each block calls it and loads its own share of the rows. `barrier` counts the bytes in each
// block. The tensor map's box has kRows / kCluster rows.
template <int kCluster, int kRows, int kHeadDim, int kBoxColumns, typename T>
__device__ __forceinline__ void tma_load_shared_tile(const CUtensorMap& map, TmaBarrier& barrier,
                                                     T* tile, int row, int head, int batch) {
  constexpr auto kNoHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  constexpr int kShare = kRows / kCluster;
  static_assert(kShare % 8 == 0, "a share begins where the swizzle's pattern does");
  const int first = kCluster == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster()) * kShare;
#pragma unroll
  for (int column = 0; column < kHeadDim; column += kBoxColumns) {
    T* const share = tile + column * kRows + first * kBoxColumns;
    auto* const full = reinterpret_cast<std::uint64_t*>(&barrier);
    if constexpr (kCluster == 1) {
      cute::SM90_TMA_LOAD_4D::copy(&map, full, kNoHint, share, column, row, head, batch);
    } else {
      constexpr std::uint16_t kAllBlocks = (1u << kCluster) - 1;
      cute::SM90_TMA_LOAD_MULTICAST_4D::copy(&map, full, kAllBlocks, kNoHint, share, column,
                                             row + first, head, batch);
    }
  }
}

// Loads a part of a tile of kBc rows, those from `tile_row` on: as many as the tensor map's box
// has, from row `row` of the tensor.
template <int kBc, int kHeadDim, int kBox, typename T>
__device__ __forceinline__ void load_box(const CUtensorMap& map, TmaBarrier& barrier, T* tile,
                                         int tile_row, int row, int head, int page) {
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
  for (int column = 0; column < kHeadDim; column += kBox) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&barrier), kHint,
                                 tile + column * kBc + tile_row * kBox, column, row, head, page);
  }
}

// Stores rows [row, row + kRows) of one head from SMEM, except rows outside the tensor: kHeadDim
// columns from `first_column` on. One thread calls it, after the threads that wrote the tile have
// called fence_view_async_shared(). It returns when the tile has been read.
template <int kRows, int kHeadDim, int kBoxColumns, typename T>
__device__ __forceinline__ void tma_store_tile(const CUtensorMap& map, const T* tile, int row,
                                               int head, int batch, int first_column = 0) {
  static_assert(sizeof(T) == 2 && kHeadDim % kBoxColumns == 0);
#pragma unroll
  for (int column = 0; column < kHeadDim; column += kBoxColumns) {
    cute::SM90_TMA_STORE_4D::copy(&map, tile + column * kRows, first_column + column, row, head,
                                  batch);
  }
  cute::tma_store_arrive();
  cute::tma_store_wait<0>();
}

// A position in a ring of kStages stages: the stage, and the phase of its barrier.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The barriers of a ring of kStages stages, between one loading thread and many computing warps.
//
//   loader      acquire: wait until the stage is empty, expect its bytes | TMA ...
//   consumers   wait: until the bytes are there | read | release: each warp says that it is done
//
// Warps that write a stage themselves, in place of TMA, wait until it is empty and then each put
// it. Both sides walk over the ring from RingPosition{} on. In a cluster whose blocks load into
// each other's rings, a stage is empty when the consumers of all kCluster blocks have released it;
// `consumer_warps` counts those of one block.
template <int kStages, int kCluster = 1>
struct TmaRing {
  TmaBarrier full[kStages];
  cutlass::arch::ClusterBarrier empty[kStages];

  // One thread calls it before any other touches the ring. `writers` are warps that put a stage.
  __device__ void init(int consumer_warps, int writers = 1) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(writers);
      empty[stage].init(consumer_warps * kCluster);
    }
  }

  __device__ TmaBarrier& acquire(const RingPosition<kStages>& at, std::uint32_t bytes) {
    acquire(at, full[at.stage], bytes);
    return full[at.stage];
  }

  // The same, but another barrier than the stage's own counts the bytes.
  __device__ void acquire(const RingPosition<kStages>& at, TmaBarrier& barrier,
                          std::uint32_t bytes) {
    wait_until_empty(at);
    barrier.arrive_and_expect_tx(bytes);
  }

  __device__ void wait_until_empty(const RingPosition<kStages>& at) {
    empty[at.stage].wait(at.phase ^ 1);  // in the first round, every stage is empty
  }

  // The whole warp has written its share, and made that visible to those who read.
  __device__ void put(const RingPosition<kStages>& at) {
    if (threadIdx.x % 32 == 0) {
      full[at.stage].arrive();
    }
  }

  __device__ void wait(const RingPosition<kStages>& at) { full[at.stage].wait(at.phase); }

  // For a warp that does not read this stage. It waits all the same, and the whole warp does before
  // a lane releases: otherwise it could release a stage twice before others have released it once.
  __device__ void skip(const RingPosition<kStages>& at) {
    wait(at);
    __syncwarp();
    release(at);
  }

  __device__ void release(const RingPosition<kStages>& at) {
    const int lane = threadIdx.x % 32;
    if constexpr (kCluster == 1) {
      if (lane == 0) {
        empty[at.stage].arrive();
      }
    } else if (lane < kCluster) {
      empty[at.stage].arrive(lane);  // in the block of that rank
    }
  }
};

}  // namespace tilewright::cuda
