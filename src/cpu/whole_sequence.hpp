// Where sequences lie in tensors, not in caches.
#pragma once

#include "cpu/attention_tile.hpp"
#include "ops/attention/params.hpp"

namespace tilewright::cpu {

// A batch entry, or a part of a packed one.
inline Sequence whole_sequence_of(const AttentionParams& p, int batch) {
  Sequence s{
      .batch = batch, .first_query = 0, .first_key = 0, .q_len = p.q_len, .kv_len = p.kv_len};
  if (p.packed_q.cu_seqlens != nullptr) {
    s.first_query = p.packed_q.cu_seqlens[batch];
    s.q_len = p.packed_q.cu_seqlens[batch + 1] - s.first_query;
  }
  if (p.kv_lengths.cu_seqlens != nullptr) {
    s.first_key = p.kv_lengths.cu_seqlens[batch];
    s.kv_len = p.kv_lengths.cu_seqlens[batch + 1] - s.first_key;
  }
  if (p.kv_lengths.used != nullptr) {
    s.kv_len = p.kv_lengths.used[batch];
  }
  return s;
}

}  // namespace tilewright::cpu
