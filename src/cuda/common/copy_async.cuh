// Copies from global memory to SMEM by cp.async: the thread goes on, and waits later. The compiler
// moves no access to memory over these functions.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

// Copies 16 bytes, or 4, to SMEM; zeros if there is no source.
template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t target, const void* source, bool exists) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(source), "r"(exists ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
                 "r"(exists ? 4 : 0)
                 : "memory");
  }
}

// A thread's copies since it last called this are a group.
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until what this thread has copied is there, but for its last kGroups groups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Until all that this thread has copied is there, for itself to read.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace tilewright::cuda
