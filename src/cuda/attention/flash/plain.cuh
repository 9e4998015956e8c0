// Plain problems use none of the features beyond the causal mask. Their kernel has no code for the
// others, which saves branches; short sequences gain by that.
#pragma once

#include "ops/attention/params.hpp"

namespace tilewright::cuda {

// Is this a dense problem, causal or not, that wants O and at most the LSE? This function's
// conditions and the constants that with_constants() sets must agree.
inline bool is_plain(const AttentionParams& p) {
  return p.row_max == nullptr && p.window_left == kNoLimit && p.window_right == kNoLimit &&
         p.softcap == 0.0f && p.sinks == nullptr && p.cu_seqlens_q == nullptr &&
         p.cu_seqlens_k == nullptr && p.seqused_k == nullptr;
}

// `p` itself or, in the plain kernel, a copy whose constants the compiler knows.
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
