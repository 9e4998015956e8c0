// How long a sequence of attention over KV caches is, from a call's lengths in memory.
#pragma once

#include <algorithm>

#include "common/divisor.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

// The lengths of one sequence.
struct SequenceLengths {
  int q_start;  // its first row of q, if packed
  int q_len;
  int kv_len;
  int leftpad;
};

// A sequence's lengths. Values out of range become the nearest in range.
TILEWRIGHT_HOST_DEVICE inline SequenceLengths lengths_of(const AttentionWithKvCacheParams& p,
                                                         int sequence) {
  SequenceLengths lengths{.q_start = 0, .q_len = p.q_len, .kv_len = 0, .leftpad = 0};
  if (p.packed_q.cu_seqlens != nullptr) {
    lengths.q_start = p.packed_q.cu_seqlens[sequence];
    lengths.q_len = p.packed_q.cu_seqlens[sequence + 1] - lengths.q_start;
  }
  lengths.kv_len = std::min(std::max(p.rows.cache_seqlens[sequence], 0), p.rows.capacity);
  if (p.added.k != nullptr) {
    const int added = p.packed_q.cu_seqlens != nullptr ? lengths.q_len : p.added.len;
    lengths.kv_len = std::min(lengths.kv_len + added, p.rows.capacity);
  }
  if (p.rows.leftpad != nullptr) {
    lengths.leftpad = std::min(std::max(p.rows.leftpad[sequence], 0), lengths.kv_len);
  }
  return lengths;
}

// The row of caches without pages that is the sequence's.
TILEWRIGHT_HOST_DEVICE inline int cache_row_of(const AttentionWithKvCacheParams& p, int sequence) {
  return p.rows.cache_batch_idx != nullptr ? p.rows.cache_batch_idx[sequence] : sequence;
}

}  // namespace tilewright::cuda
