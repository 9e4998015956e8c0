// Problems of which nothing special is asked: their kernel has no code for what they do not want,
// which leaves less of it to run past. Short sequences see that.
#pragma once

#include "ops/attention/params.hpp"

namespace tilewright::cuda {

// Is this O, and perhaps the LSE, of dense sequences, causal or not? What it asks for, and what
// with_constants() sets, must agree.
inline bool is_plain(const AttentionParams& p) {
  return p.row_max == nullptr && p.window_left == kNoLimit && p.window_right == kNoLimit &&
         p.softcap == 0.0f && p.sinks == nullptr && p.cu_seqlens_q == nullptr &&
         p.cu_seqlens_k == nullptr && p.seqused_k == nullptr;
}

// `p` itself, or where it is plain a copy that the compiler knows to be so.
template <bool kIsPlain>
__device__ decltype(auto) with_constants(const AttentionParams& p) {
  if constexpr (kIsPlain) {
    AttentionParams plain = p;
    plain.row_max = plain.row_sum = nullptr;
    plain.window_left = plain.window_right = kNoLimit;
    plain.softcap = 0.0f;
    plain.sinks = nullptr;
    plain.cu_seqlens_q = plain.cu_seqlens_k = plain.seqused_k = nullptr;
    return plain;
  } else {
    return (p);
  }
}

}  // namespace tilewright::cuda
