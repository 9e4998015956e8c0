// The tensor maps of FP8 attention over transposed values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/common/tensor_map.hpp"
#include "ops/attention_fp8/params.hpp"

namespace tilewright::cuda {

// A tensor of every other row of K, from row `parity` on, in boxes of `rows` such rows. Without a
// second row the tensor of odd ones has the first, as it may not be empty: the mask hides it.
struct KeyRows {
  const std::uint8_t* base;
  TensorMapSpec spec;
};

inline KeyRows every_other_key(const AttentionFp8Params& p, int batch, int parity, int rows,
                               TmaSwizzle swizzle) {
  OuterStrides stride = p.k_stride;
  stride.seq *= 2;
  const std::int64_t first = parity < p.kv_len ? parity * p.k_stride.seq : 0;
  const int count = std::max(ceil_div(p.kv_len - parity, 2), 1);
  return {.base = static_cast<const std::uint8_t*>(p.k) + first,
          .spec = tile_map_spec(batch, count, p.kv_heads, p.head_dim, stride, rows, swizzle, 1)};
}

// V^T (B, Hk, Dv, Nk'), keys contiguous, in boxes of 128 keys and all dims. Beyond the last key TMA
// reads zeros: what lies there may be NaN. Behind a packed sequence's last key it reads what is
// there, which the kernel clears.
inline TensorMapSpec transposed_values(const AttentionFp8Params& p, int batch) {
  const OuterStrides stride{
      .batch = p.v_stride.batch, .seq = p.v_dim_stride, .head = p.v_stride.head};
  TensorMapSpec spec = tile_map_spec(batch, p.value_dim, p.kv_heads, p.v_columns, stride,
                                     p.value_dim, TmaSwizzle::b128, 1);
  if (p.kv_lengths.cu_seqlens == nullptr) {
    spec.size[0] = static_cast<std::uint64_t>(p.kv_len);
  }
  return spec;
}

}  // namespace tilewright::cuda
