// The sums of a tile's parts (stream-K) go to the tile's reducer through global memory.
//
// Consumers store their sums and go on. A warp that is otherwise idle, the courier, does the two
// slow steps: it publishes its block's sums once all are stored, and waits for those of other
// blocks. Two named barriers connect it with the consumers of its block: one says that their sums
// are stored, the other that those of other blocks have arrived. Each slot has a flag in global
// memory. A courier sets it to the launch's epoch when the slot's sums can be read; the courier
// that waits for them clears it.
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

// A slot has the accumulators of kThreads threads, and this is one thread's view of slots. Groups
// of four accumulators of neighbouring threads lie side by side.
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
    constexpr int kAhead = kAccumulators <= 16 ? 4 : 1;  // slots that are loaded together
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

// The courier's flags. A whole warp calls each function.
class Courier {
 public:
  __device__ explicit Courier(const PartialSums& partial) : partial_(partial) {}

  // Sets the flag: a warp that sees it may read all sums that this warp knows to be stored.
  __device__ void announce(int slot) const {
    if (threadIdx.x % 32 == 0) {
      asm volatile("fence.acq_rel.gpu; st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag(slot)),
                   "l"(partial_.epoch)
                   : "memory");
    }
    __syncwarp();
  }

  // Waits for the flags of all slots, of which each lane watches one at a time.
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
