// Whether two tensors share memory.
#pragma once

#include "tilewright/tensor.hpp"

namespace tilewright {

// Whether an element of `a` and one of `b`, of the same memory, have a byte in common. Exact, also
// where tensors interleave: rows of one may lie in the gaps between those of the other. Takes time
// only where they do so with strides that differ.
bool shares_bytes(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace tilewright
