// Which keys a query sees under a causal mask, a window or a left padding.
#pragma once

#include "common/attention_parts.hpp"

namespace tilewright::cuda {

// The keys that row i of a sequence's queries sees: [first(i), end(i)).
struct VisibleKeys {
  int kv_len;
  int diagonal;  // query i stands at key i + diagonal
  int left;
  int leftpad;  // no row sees a key before it
  int right;  // at most the number of queries, from which on every key is seen. So sums stay within
              // 31 bits, also for rows of a tile that lie beyond the last query

  __device__ VisibleKeys(int q_len, int keys, bool is_causal, const KeyWindow& window,
                         int first_key = 0)
      : kv_len(keys),
        diagonal(keys - q_len),
        left(window.left),
        leftpad(first_key),
        right(is_causal ? 0 : min(window.right, q_len)) {}

  __device__ int first(int row) const { return max(row + diagonal - left, leftpad); }
  __device__ int end(int row) const { return min(max(row + diagonal + right + 1, 0), kv_len); }
};

}  // namespace tilewright::cuda
