// How params of attention operations get strides and windows from a call's tensors and options.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/attention_parts.hpp"
#include "tilewright/attention.hpp"

namespace tilewright {

// The stride of dimension i. One that is never stepped over becomes 0, whatever the caller put
// there.
inline std::int64_t stride_of(const ConstTensorView& t, int i) {
  return t.shape[i] > 1 ? t.stride[i] : 0;
}

// Strides of a tensor's outer dimensions; the batch, if it has one, comes first.
inline OuterStrides outer_strides(const ConstTensorView& t, int seq, int head) {
  const bool has_batch = std::min(seq, head) == 1;
  return {.batch = has_batch ? stride_of(t, 0) : 0,
          .seq = stride_of(t, seq),
          .head = stride_of(t, head)};
}

// ([batch,] seqlen, heads, head_dim)
inline OuterStrides row_strides(const ConstTensorView& t) {
  return outer_strides(t, t.rank - 3, t.rank - 2);
}

// ([batch,] heads, seqlen)
inline OuterStrides statistic_strides(const std::optional<ConstTensorView>& t) {
  return t ? outer_strides(*t, t->rank - 1, t->rank - 2) : OuterStrides{};
}

// A side of the window, as kernels take it.
inline int limit_of(std::optional<std::int64_t> side) {
  return static_cast<int>(std::min<std::int64_t>(side.value_or(kNoLimit), kNoLimit));
}

inline KeyWindow key_window_of(const Window& window) {
  return {.left = limit_of(window.left), .right = limit_of(window.right)};
}

inline bool is_limited(const Window& window) {
  return limit_of(window.left) < kNoLimit || limit_of(window.right) < kNoLimit;
}

}  // namespace tilewright
