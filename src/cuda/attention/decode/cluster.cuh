// What the blocks of a cluster need to read each other's SMEM.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/cluster_sm90.hpp>

namespace tilewright::cuda {

// The same object in the SMEM of block `rank` of the cluster.
template <typename T>
__device__ T* of_block(T* own, int rank) {
  return static_cast<T*>(__cluster_map_shared_rank(own, static_cast<unsigned>(rank)));
}

// Arrives at this barrier in every block of a cluster of `size`, once for each block. What the
// caller's threads have written to their SMEM before a barrier among them is seen by those who wait
// with wait_for_all(). A warpgroup calls it.
__device__ inline void arrive_in_all(cutlass::arch::ClusterBarrier& barrier, int size) {
  const int rank = threadIdx.x % 128;
  if (rank < size) {
    const std::uint32_t address = cute::cast_smem_ptr_to_uint(&barrier);
    asm volatile(
        "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];}" ::"r"(address),
        "r"(rank)
        : "memory");
  }
}

__device__ inline void wait_for_all(cutlass::arch::ClusterBarrier& barrier, std::uint32_t phase) {
  const std::uint32_t address = cute::cast_smem_ptr_to_uint(&barrier);
  std::uint32_t is_done = 0;
  while (!is_done) {
    asm volatile(
        "{.reg .pred done; "
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2; "
        "selp.u32 %0, 1, 0, done;}"
        : "=r"(is_done)
        : "r"(address), "r"(phase)
        : "memory");
  }
}

}  // namespace tilewright::cuda
