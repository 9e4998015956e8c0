// Kinds of problems, each of which has a kernel without the code that only others need. Less code
// means fewer branches and fewer instructions to fetch, by which short sequences gain most.
#pragma once

#include <cstdint>

#include "ops/attention/params.hpp"

namespace tilewright::cuda {

enum class ProblemKind : std::uint8_t {
  plain,     // dense, causal or not, of which O and at most the LSE are wanted
  uncapped,  // without a soft cap, whose code is long
  any,
};

// The conditions of a kind, and the constants that with_constants() sets, must agree.
inline ProblemKind kind_of(const AttentionParams& p) {
  const bool is_dense = p.packed_q.cu_seqlens == nullptr && p.kv_lengths.cu_seqlens == nullptr &&
                        p.kv_lengths.used == nullptr;
  const bool has_window = p.window.left != kNoLimit || p.window.right != kNoLimit;
  return p.softcap != 0.0f ? ProblemKind::any
         : is_dense && !has_window && p.statistics.max == nullptr && p.sinks.logits == nullptr
             ? ProblemKind::plain
             : ProblemKind::uncapped;
}

// `p` itself or, in the kernel of a kind, a copy whose constants the compiler knows.
template <ProblemKind kKind, typename Params>
__device__ decltype(auto) with_constants(const Params& p) {
  if constexpr (kKind == ProblemKind::any) {
    return (p);
  } else {
    Params known = p;
    known.softcap = 0.0f;
    if constexpr (kKind == ProblemKind::plain) {
      known.statistics.max = known.statistics.sum = nullptr;
      known.window = {};
      known.sinks.logits = nullptr;
      known.packed_q = {};
      known.kv_lengths = {};
    }
    return known;
  }
}

}  // namespace tilewright::cuda
