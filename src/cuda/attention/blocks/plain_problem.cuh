// Plain problems use none of the features beyond the causal mask. Their kernel has no code for the
// others, which saves branches; short sequences gain by that.
#pragma once

#include "ops/attention/params.hpp"

namespace tilewright::cuda {

// Is this a dense problem, causal or not, that wants O and at most the LSE? This function's
// conditions and the constants that with_constants() sets must agree.
inline bool is_plain(const AttentionParams& p) {
  return p.statistics.max == nullptr && p.window.left == kNoLimit && p.window.right == kNoLimit &&
         p.softcap == 0.0f && p.sinks.logits == nullptr && p.packed_q.cu_seqlens == nullptr &&
         p.kv_lengths.cu_seqlens == nullptr && p.kv_lengths.used == nullptr;
}

// `p` itself or, in the plain kernel, a copy whose constants the compiler knows.
template <bool kIsPlain, typename Params>
__device__ decltype(auto) with_constants(const Params& p) {
  if constexpr (kIsPlain) {
    Params plain = p;
    plain.statistics.max = plain.statistics.sum = nullptr;
    plain.window = {};
    plain.softcap = 0.0f;
    plain.sinks.logits = nullptr;
    plain.packed_q = {};
    plain.kv_lengths = {};
    return plain;
  } else {
    return (p);
  }
}

}  // namespace tilewright::cuda
