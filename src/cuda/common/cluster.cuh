// What the blocks of a cluster need to write to each other's SMEM.
#pragma once

#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

__device__ __forceinline__ std::uint32_t address_in_block(const void* own, int rank) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(cute::cast_smem_ptr_to_uint(own)), "r"(rank));
  return remote;
}

// A barrier of block `rank` that counts bytes.
struct RemoteBarrier {
  std::uint32_t address;

  __device__ RemoteBarrier(const TmaBarrier& own, int rank)
      : address(address_in_block(&own, rank)) {}
};

// Stores a value where `own` lies in block `rank`. The barrier counts its bytes when they are
// there.
__device__ __forceinline__ void send(float4* own, int rank, const float4& value,
                                     const RemoteBarrier& barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address_in_block(own, rank)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier.address)
      : "memory");
}
__device__ __forceinline__ void send(float2* own, int rank, const float2& value,
                                     const RemoteBarrier& barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
      "[%3];" ::"r"(address_in_block(own, rank)),
      "f"(value.x), "f"(value.y), "r"(barrier.address)
      : "memory");
}

// Copies bytes of SMEM to where they lie in block `rank`, whose barrier counts them. Their writers
// have executed fence_view_async_shared() and a barrier, and leave them until they are counted.
__device__ __forceinline__ void copy_to_block(const void* own, int rank, int bytes,
                                              const RemoteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(address_in_block(own, rank)),
      "r"(cute::cast_smem_ptr_to_uint(own)), "r"(bytes), "r"(barrier.address)
      : "memory");
}

// Arrives at this barrier in every block of a cluster of `size`, once for each block. What the
// caller's threads have read from their SMEM before a barrier among them may then be overwritten.
// The consumer's threads call it.
__device__ inline void arrive_in_all(const cutlass::arch::ClusterBarrier& barrier, int size) {
  const int rank = threadIdx.x;
  if (rank < size) {
    barrier.arrive(rank);
  }
}

}  // namespace tilewright::cuda
