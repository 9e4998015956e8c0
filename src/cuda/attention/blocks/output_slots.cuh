// The slots in SMEM where consumers put O, from which one thread stores it by TMA.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {

// Each consumer has a slot, or they share one, which passes from one to the next. A position counts
// the tiles that are stored by TMA. `Tiles` has what a WgmmaTiles has of O.
template <typename Element, typename Tiles, int kConsumers, int kSlots>
struct OutputSlots {
  static_assert(kSlots == 1 || kSlots == kConsumers);
  static constexpr bool kIsShared = kSlots < kConsumers;
  static constexpr int kBoxColumns = Tiles::kBoxColumns;  // of a TMA store
  static constexpr int kElements = cute::cosize_v<typename Tiles::LayoutO>;
  alignas(1024) Element sO[kSlots][kElements];        // (64, Dv), swizzled
  cutlass::arch::ClusterBarrier full[kConsumers];     // a consumer's O is there
  cutlass::arch::ClusterBarrier granted[kConsumers];  // a consumer may write to its slot

  __device__ void init() {
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      full[consumer].init(kWarpgroupThreads / 32);
      granted[consumer].init(1);
    }
  }

  // By the storing thread: O of a consumer, and that it has left its slot.
  __device__ Element* wait(int consumer, const RingPosition<1>& at) {
    full[consumer].wait(at.phase);
    return slot(consumer);
  }
  __device__ void release(int consumer) {
    granted[kIsShared ? (consumer + 1) % kConsumers : consumer].arrive();
  }

  // By a consumer: O in 16 bits. At first each has its slot, or the first one has it.
  template <typename TensorO>
  __device__ void put(const TensorO& tOrO, int consumer, const RingPosition<1>& at) {
    using namespace cute;
    const bool has_it_at_first = !kIsShared || consumer == 0;
    Tensor rO = make_tensor_like<Element>(tOrO);
    round_to_16_bits(tOrO, rO);
    const auto copier =
        make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, typename Tiles::TiledMmaPv{});
    const auto thread_copy = copier.get_slice(threadIdx.x % kWarpgroupThreads);
    granted[consumer].wait(at.phase ^ has_it_at_first);
    copy(copier, thread_copy.retile_S(rO),
         thread_copy.partition_D(Tiles::tile(slot(consumer), typename Tiles::LayoutO{})));
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      full[consumer].arrive();
    }
  }

 private:
  __device__ Element* slot(int consumer) { return sO[kIsShared ? 0 : consumer]; }
};

}  // namespace tilewright::cuda
