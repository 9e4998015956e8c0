// Ping-pong: consumers issue GEMMs in turn, so that the softmax of one runs while another's GEMMs
// do.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {

// Decides which consumer may issue GEMMs. Each consumer waits on a named barrier of its own, at
// which the consumer before it arrives. A single consumer needs no barrier.
template <int kConsumers>
struct PingPong {
  static constexpr std::uint32_t kFirstBarrier = 1;
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  int consumer;

  // Until the consumer before has issued its GEMMs.
  __device__ void wait() const {
    if constexpr (kConsumers > 1) {
      cutlass::arch::NamedBarrier::sync(kThreads, kFirstBarrier + consumer);
    }
  }

  // Lets the next consumer issue its GEMMs.
  __device__ void pass() const {
    if constexpr (kConsumers > 1) {
      cutlass::arch::NamedBarrier::arrive(kThreads, kFirstBarrier + (consumer + 1) % kConsumers);
    }
  }

  // In place of a step in which this consumer issues no GEMMs.
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
