// Sums of parts of a tile on their way to the tile's owner, through global memory.
//
// Consumers store their sums and go on. To make sure that all have been stored, and to see that
// those of other blocks have, takes long; that is up to a warp that has nothing else to do, the
// courier. Between it and the consumers of its block is a barrier, between couriers a flag for each
// slot: the launch's epoch says that the sums are there, and whoever reads it clears it.
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

// A thread's accumulators in slots of those of kThreads threads; neighbours' groups of four lie
// side by side.
template <int kThreads, int kAccumulators>
class SumSlots {
 public:
  static_assert(kAccumulators % 4 == 0);

  __device__ SumSlots(const PartialSums& partial, int thread)
      : partial_(partial), thread_(thread) {}

  template <typename Accumulator>
  __device__ void store(int slot, const Accumulator& acc) const {
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      __stcg(at(slot, i), make_float4(acc(i), acc(i + 1), acc(i + 2), acc(i + 3)));
    }
  }

  template <typename Accumulator>
  __device__ void add(const SlotRange& slots, Accumulator& acc) const {
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
  __device__ float4* at(int slot, int i) const {
    return reinterpret_cast<float4*>(partial_.sums +
                                     std::int64_t{slot} * kThreads * kAccumulators) +
           (i / 4 * kThreads + thread_);
  }

  const PartialSums& partial_;
  int thread_;
};

// To be called by a whole warp.
class Courier {
 public:
  __device__ explicit Courier(const PartialSums& partial) : partial_(partial) {}

  // What the warp knows to be stored is there for whoever sees the flag.
  __device__ void announce(int slot) const {
    if (threadIdx.x % 32 == 0) {
      asm volatile("fence.acq_rel.gpu; st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag(slot)),
                   "l"(partial_.epoch)
                   : "memory");
    }
    __syncwarp();
  }

  // A lane watches one of 32 flags at a time.
  __device__ void await(const SlotRange& slots) const {
    for (int slot = slots.first + static_cast<int>(threadIdx.x) % 32 * slots.step; slot < slots.end;
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

 private:
  __device__ std::uint64_t* flag(int slot) const { return partial_.flags + slot; }

  const PartialSums& partial_;
};

}  // namespace tilewright::cuda
