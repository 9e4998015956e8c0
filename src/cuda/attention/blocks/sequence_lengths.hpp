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

// What a call's arrays say of them.
struct ToldLengths {
  int q_start;
  int q_end;
  int cached;
  int leftpad;
};

// A sequence's lengths. Values out of range become the nearest in range.
TILEWRIGHT_HOST_DEVICE inline SequenceLengths lengths_of(const AttentionWithKvCacheParams& p,
                                                         const ToldLengths& told) {
  const int capacity = p.rows.capacity;
  const int cached = told.cached;
  const int leftpad = told.leftpad;
  const int most_tokens = p.q_len;
  const int tokens = told.q_end - told.q_start;
  const int q_len = std::min(std::max(tokens, 0), most_tokens);
  int kv_len = std::min(std::max(cached, 0), capacity);
  if (p.added.k != nullptr) {
    const int added = p.packed_q.cu_seqlens != nullptr ? q_len : p.added.len;
    kv_len = std::min(kv_len + added, capacity);
  }
  return {.q_start = told.q_start,
          .q_len = q_len,
          .kv_len = kv_len,
          .leftpad = std::min(std::max(leftpad, 0), kv_len)};
}

// `read` reads an int of memory.
template <typename Read>
TILEWRIGHT_HOST_DEVICE SequenceLengths lengths_of(const AttentionWithKvCacheParams& p, int sequence,
                                                  const Read& read) {
  const int* const starts = p.packed_q.cu_seqlens;
  return lengths_of(p,
                    {.q_start = starts != nullptr ? read(starts + sequence) : 0,
                     .q_end = starts != nullptr ? read(starts + sequence + 1) : p.q_len,
                     .cached = read(p.rows.cache_seqlens + sequence),
                     .leftpad = p.rows.leftpad != nullptr ? read(p.rows.leftpad + sequence) : 0});
}
TILEWRIGHT_HOST_DEVICE inline SequenceLengths lengths_of(const AttentionWithKvCacheParams& p,
                                                         int sequence) {
  return lengths_of(p, sequence, [](const int* at) { return *at; });
}

// The row of caches without pages that is the sequence's.
TILEWRIGHT_HOST_DEVICE inline int cache_row_of(const AttentionWithKvCacheParams& p, int sequence) {
  return p.rows.cache_batch_idx != nullptr ? p.rows.cache_batch_idx[sequence] : sequence;
}

}  // namespace tilewright::cuda
