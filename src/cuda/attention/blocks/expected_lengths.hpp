// What the host expects of the lengths of a call over KV caches, which lie in GPU memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {

// The most new tokens and keys of a sequence, as far as the host knows. Nothing but speed may
// depend on them, as a sequence may have more. If it was not told, the longest packed sequence has
// all tokens but one for each other.
inline std::int64_t longest_q_len(const AttentionWithKvCacheProblem& p) {
  if (!p.packed || p.batch_invariant) {
    return p.q_len;
  }
  const std::int64_t longest = p.max_seqlen_q > 0 ? p.max_seqlen_q : p.q_len - p.batch + 1;
  return std::clamp(longest, std::int64_t{1}, p.q_len);
}
inline std::int64_t longest_kv_len(const AttentionWithKvCacheProblem& p) {
  const bool is_told = p.max_seqlen_k > 0 && !p.batch_invariant;
  return is_told ? std::min(p.max_seqlen_k, p.capacity) : p.capacity;
}

}  // namespace tilewright::cuda
