// How params and checks of dsv4_attention() get strides from a call's tensors.
#pragma once

#include "ops/attention_strides.hpp"
#include "ops/dsv4_attention/params.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Of a tensor (B, Nq, ...), or (Tq, ...) if packed.
inline TokenStrides token_strides(const ConstTensorView& t, bool is_packed) {
  return is_packed ? TokenStrides{.batch = 0, .token = stride_of(t, 0)}
                   : TokenStrides{.batch = stride_of(t, 0), .token = stride_of(t, 1)};
}

}  // namespace tilewright
