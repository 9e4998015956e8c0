// Sums of parts of a tile on their way to the tile's owner, through global memory. Each warp hands
// over its share of the accumulators by itself; its flag then says that they are there, by the
// launch's epoch, and whoever reads them clears it.
#pragma once

#include <cstdint>

#include "cuda/gemm/nvfp4/launch.hpp"

namespace tilewright::cuda {

// The slots [first, end), spaced by `step`.
struct SlotRange {
  int first;
  int end;
  int step;
};

// One warp's view: `thread` and kThreads count those of all warps that hand over.
template <int kThreads, int kAccumulators>
class WarpSums {
 public:
  static_assert(kAccumulators % 4 == 0);

  __device__ WarpSums(const PartialSums& partial, int thread)
      : partial_(partial), thread_(thread) {}

  template <typename Accumulator>
  __device__ void hand_over(int slot, const Accumulator& acc) const {
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      __stcg(at(slot, i), make_float4(acc(i), acc(i + 1), acc(i + 2), acc(i + 3)));
    }
    __syncwarp();
    if (thread_ % 32 == 0) {
      asm volatile("fence.acq_rel.gpu; st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag(slot)),
                   "l"(partial_.epoch)
                   : "memory");
    }
  }

  template <typename Accumulator>
  __device__ void add(const SlotRange& slots, Accumulator& acc) const {
    wait(slots);
    constexpr int kAhead = kAccumulators <= 16 ? 4 : 1;  // slots on their way
#pragma unroll kAhead
    for (int slot = slots.first; slot < slots.end; slot += slots.step) {
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        const float4 sums = __ldcg(at(slot, i));
        acc(i) += sums.x;
        acc(i + 1) += sums.y;
        acc(i + 2) += sums.z;
        acc(i + 3) += sums.w;
      }
    }
  }

 private:
  // A lane watches one of 32 flags at a time.
  __device__ void wait(const SlotRange& slots) const {
    for (int slot = slots.first + thread_ % 32 * slots.step; slot < slots.end;
         slot += 32 * slots.step) {
      std::uint64_t* const watched = flag(slot);
      std::uint64_t seen = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(watched) : "memory");
      } while (seen != partial_.epoch);
      *watched = 0;
    }
    __syncwarp();
  }

  __device__ float4* at(int slot, int i) const {
    return reinterpret_cast<float4*>(partial_.sums +
                                     std::int64_t{slot} * kThreads * kAccumulators) +
           (i / 4 * kThreads + thread_);
  }
  __device__ std::uint64_t* flag(int slot) const {
    return partial_.flags + (slot * (kThreads / 32) + thread_ / 32);
  }

  const PartialSums& partial_;
  int thread_;
};

}  // namespace tilewright::cuda
