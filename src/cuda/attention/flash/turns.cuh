// Ping-pong: consumers take turns to issue their products, so that one's softmax runs under
// another's.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// Whose turn it is to issue products: a named barrier for each consumer, on which it waits and the
// one before it arrives. A consumer alone needs none.
template <int kConsumers>
struct Turns {
  static constexpr std::uint32_t kFirstBarrier = 1;
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  int consumer;

  __device__ void wait() const {
    if constexpr (kConsumers > 1) {
      cutlass::arch::NamedBarrier::sync(kThreads, kFirstBarrier + consumer);
    }
  }
  __device__ void pass() const {
    if constexpr (kConsumers > 1) {
      cutlass::arch::NamedBarrier::arrive(kThreads, kFirstBarrier + (consumer + 1) % kConsumers);
    }
  }

  // In place of a step for which this consumer has no products.
  __device__ void skip() const {
    wait();
    pass();
  }

  // Before the first tile and after the last.
  __device__ void begin() const {
    if (consumer == kConsumers - 1) {
      pass();
    }
  }
  __device__ void end() const {
    if (consumer == 0) {
      wait();
    }
  }
};

}  // namespace tilewright::cuda
