// Where a row of a tensor lies.
#pragma once

#include "common/strides.hpp"

namespace tilewright::cuda {

// The address of element (batch, seq, head, 0).
template <typename T, typename Pointer>
__host__ __device__ T* row_pointer(Pointer base, const OuterStrides& stride, int batch, int seq,
                                   int head) {
  return static_cast<T*>(base) + batch * stride.batch + seq * stride.seq + head * stride.head;
}

}  // namespace tilewright::cuda
