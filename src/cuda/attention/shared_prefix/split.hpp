// Where sequences that share prefixes have their tokens and keys, as the passes of plan.hpp read
// it. Host and device compute it alike.
#pragma once

#include "common/divisor.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

// The numbers of all sequences, in the workspace: B of each, but for `tokens`.
struct SplitLengths {
  int* tokens;  // B + 1: where a sequence's tokens begin in the prefix pass
  int* shared;  // keys of its prefix
  int* keys;    // all of its keys, new rows too
};

// A sequence's group.
struct PrefixGroup {
  int index;
  int first;  // sequence
  int end;
};

// Boundaries that do not ascend count in ascending order, and those out of range as the nearest in
// range: any numbers share out the sequences. Of groups that begin together, all but the last are
// empty.
TILEWRIGHT_HOST_DEVICE constexpr PrefixGroup group_of(const SharedPrefixes& prefixes, int sequences,
                                                      int sequence) {
  PrefixGroup group{.index = 0, .first = 0, .end = sequences};
  for (int g = 1; g < prefixes.count; ++g) {
    const int begin = prefixes.groups[g];
    if (begin > sequence) {
      group.end = begin < group.end ? begin : group.end;
    } else if (begin >= group.first) {
      group.index = g;
      group.first = begin;
    }
  }
  return group;
}

TILEWRIGHT_HOST_DEVICE constexpr int clamped(int value, int most) {
  return value < 0 ? 0 : value > most ? most : value;
}

// The first of a sequence's tokens among all; of sequence B, their end.
TILEWRIGHT_HOST_DEVICE constexpr int first_token(const AttentionWithKvCacheParams& p,
                                                 int sequence) {
  return p.packed_q.cu_seqlens != nullptr ? p.packed_q.cu_seqlens[sequence] : sequence * p.q_len;
}

TILEWRIGHT_HOST_DEVICE constexpr int keys_of(const AttentionWithKvCacheParams& p, int sequence) {
  const int cached = clamped(p.rows.cache_seqlens[sequence], p.rows.capacity);
  if (p.added.k == nullptr) {
    return cached;
  }
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  const int added =
      is_packed ? first_token(p, sequence + 1) - first_token(p, sequence) : p.added.len;
  return clamped(cached + added, p.rows.capacity);
}

// Writes the numbers of a sequence, or the end of all tokens.
TILEWRIGHT_HOST_DEVICE constexpr void split(const AttentionWithKvCacheParams& p,
                                            const SplitLengths& lengths, int sequence) {
  if (sequence == p.batch) {
    lengths.tokens[sequence] = first_token(p, sequence);
    return;
  }
  const PrefixGroup group = group_of(p.prefixes, p.batch, sequence);
  lengths.tokens[sequence] = first_token(p, sequence == group.first ? sequence : group.end);
  lengths.shared[sequence] = clamped(p.prefixes.seqlens[group.index], keys_of(p, group.first));
  lengths.keys[sequence] = keys_of(p, sequence);
}

}  // namespace tilewright::cuda
