// Reads memory that a launch ahead may still write (launch_order.cuh).
#pragma once

namespace tilewright::cuda {

// What memory holds now, or held a moment ago. It is read past L1, where an old value could
// otherwise stay until after the launch ahead has ended.
__device__ inline int peek(const int* p) {
  int value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

}  // namespace tilewright::cuda
