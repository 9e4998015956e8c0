// The copy engine: one thread asks for a tile, a barrier in SMEM tells when its bytes are there.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

namespace tilewright::cuda {

// An mbarrier that counts arrivals and bytes; each completion flips its phase.
using TmaBarrier = cutlass::arch::ClusterTransactionBarrier;

// Brings rows [row, row + kRows) of one head, kHeadDim columns of 2-byte elements, into `tile`,
// kBoxColumns columns a copy; each copy's columns lie together in SMEM. Called by one thread, after
// barrier.arrive_and_expect_tx(bytes).
template <int kRows, int kHeadDim, int kBoxColumns, typename T>
__device__ __forceinline__ void tma_load_tile(const CUtensorMap& map, TmaBarrier& barrier, T* tile,
                                              int row, int head, int batch) {
  static_assert(sizeof(T) == 2 && kHeadDim % kBoxColumns == 0);
  constexpr auto kNoHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
  for (int column = 0; column < kHeadDim; column += kBoxColumns) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&barrier), kNoHint,
                                 tile + column * kRows, column, row, head, batch);
  }
}

// The position in a ring of kStages buffers: which stage, and which phase of its barrier.
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

}  // namespace tilewright::cuda
