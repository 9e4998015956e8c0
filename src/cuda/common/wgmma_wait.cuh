// A fence against moving a wait for a GEMM.
#pragma once

namespace tilewright::cuda {

// Keeps the wait for a GEMM that follows behind the computation of `value`, as
// wait_no_earlier_than() does, but without a branch, which takes registers where an accumulator
// lies on both sides of it: by a store that never happens. ptxas does not move a wait over an
// access to memory.
__device__ __forceinline__ void wait_no_earlier_than_store(float value) {
  asm volatile(
      "{.reg .pred never; .reg .u32 nowhere;\n"
      "setp.lt.f32 never, %0, 0f00000000;\n"
      "mov.u32 nowhere, 0;\n"
      "@never st.shared.f32 [nowhere], %0;}"
      :
      : "f"(value)
      : "memory");
}

}  // namespace tilewright::cuda
