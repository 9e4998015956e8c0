// Tiles of a persistent block, on their way from the warp that schedules them to the warps that
// work on them.
#pragma once

#include <cutlass/arch/barrier.h>

#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

// A ring of descriptions of tiles. It has room for three: one whose O is being stored, one that is
// computed, and one that is loaded.
template <typename Tile>
struct TileRing {
  static constexpr int kSlots = 3;
  using Position = RingPosition<kSlots>;
  cutlass::arch::ClusterBarrier full[kSlots];
  cutlass::arch::ClusterBarrier wanted[kSlots];
  cutlass::arch::ClusterBarrier empty[kSlots];
  Tile tiles[kSlots];

  // One thread calls it before any other touches the ring. `readers` are warps.
  __device__ void init(int readers) {
    for (int slot = 0; slot < kSlots; ++slot) {
      full[slot].init(1);
      wanted[slot].init(1);
      empty[slot].init(readers);
    }
  }

  // The scheduling warp calls it for a free slot; the lane that wrote there calls put().
  __device__ Tile& acquire(const Position& at) {
    empty[at.stage].wait(at.phase ^ 1);
    return tiles[at.stage];
  }
  __device__ void put(const Position& at) { full[at.stage].arrive(); }
  __device__ void wait_until_wanted(const Position& at) { wanted[at.stage].wait(at.phase); }

  // The loading thread calls it when it will soon need another tile.
  __device__ void want_next(const Position& at) { wanted[at.stage].arrive(); }

  // Readers wait for a tile. It stays until all their warps have released it.
  __device__ const Tile& wait(const Position& at) {
    full[at.stage].wait(at.phase);
    return tiles[at.stage];
  }
  __device__ void release(const Position& at) {
    if (threadIdx.x % 32 == 0) {
      empty[at.stage].arrive();
    }
  }
};

}  // namespace tilewright::cuda
