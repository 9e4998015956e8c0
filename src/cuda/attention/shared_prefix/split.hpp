// Where sequences that share prefixes have their tokens and keys, as the passes of plan.hpp read
// it. Host and device compute it alike.
#pragma once

#include "common/divisor.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

// The numbers of all sequences, in the workspace: B of each, but for `rows`.
struct SplitLengths {
  int* rows;    // B + 1: where a sequence's rows begin in the prefix pass
  int* shared;  // keys of its prefix
  int* keys;    // all of its keys, new rows too
};

// Where the prefix pass has a row of q: of a KV head, token by token.
struct PrefixRow {
  int row;
  int kv_head;
};

TILEWRIGHT_HOST_DEVICE constexpr PrefixRow prefix_row(int token, int head, const Divisor& group) {
  const int kv_head = head / group;
  return {.row = token * int{group} + head - kv_head * int{group}, .kv_head = kv_head};
}

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

TILEWRIGHT_HOST_DEVICE constexpr bool is_packed(const AttentionWithKvCacheParams& p) {
  return p.packed_q.cu_seqlens != nullptr;
}

// The tokens of all sequences; packed: the rows of q, perhaps more.
TILEWRIGHT_HOST_DEVICE constexpr int all_tokens(const AttentionWithKvCacheParams& p) {
  return is_packed(p) ? p.q_len : p.batch * p.q_len;
}

// The first of a sequence's tokens among all; of sequence B, their end.
TILEWRIGHT_HOST_DEVICE constexpr int first_token(const AttentionWithKvCacheParams& p,
                                                 int sequence) {
  return is_packed(p) ? p.packed_q.cu_seqlens[sequence] : sequence * p.q_len;
}

TILEWRIGHT_HOST_DEVICE constexpr int keys_of(const AttentionWithKvCacheParams& p, int sequence) {
  const int cached = clamped(p.rows.cache_seqlens[sequence], p.rows.capacity);
  if (p.added.k == nullptr) {
    return cached;
  }
  const int added =
      is_packed(p) ? first_token(p, sequence + 1) - first_token(p, sequence) : p.added.len;
  return clamped(cached + added, p.rows.capacity);
}

// Writes the numbers of a sequence, or the end of all rows.
TILEWRIGHT_HOST_DEVICE constexpr void split(const AttentionWithKvCacheParams& p,
                                            const SplitLengths& lengths, int sequence) {
  const int group_heads = p.heads / p.kv_heads;
  if (sequence == p.batch) {
    lengths.rows[sequence] = first_token(p, sequence) * group_heads;
    return;
  }
  const PrefixGroup group = group_of(p.prefixes, p.batch, sequence);
  lengths.rows[sequence] =
      first_token(p, sequence == group.first ? sequence : group.end) * group_heads;
  lengths.shared[sequence] = clamped(p.prefixes.seqlens[group.index], keys_of(p, group.first));
  lengths.keys[sequence] = keys_of(p, sequence);
}

}  // namespace tilewright::cuda
