// Whether two tensors share memory.
#pragma once

#include <initializer_list>
#include <optional>

#include "tilewright/tensor.hpp"

namespace tilewright {

// Do an element of `a` and one of `b`, on the same device, have a byte in common? The answer is
// exact even if tensors interleave: rows of one may lie in the gaps between those of the other. It
// takes time only if they interleave with strides that differ.
bool shares_bytes(const ConstTensorView& a, const ConstTensorView& b);

// Another argument of a call.
struct OtherTensor {
  const char* argument;
  std::optional<ConstTensorView> tensor;
};

// Throws if an output shares memory with another argument's tensor. `why` ends the message.
void check_is_apart(const char* argument, const ConstTensorView& output,
                    std::initializer_list<OtherTensor> others, const char* why = "");

}  // namespace tilewright
