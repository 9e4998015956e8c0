// What a problem gives the decode kernel to do, as far as its shapes tell: items, which are a row
// tile of a KV head each, and their key tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/expected_lengths.hpp"
#include "cuda/attention/decode/plan.hpp"

namespace tilewright::cuda {

using DecodeProblem = AttentionWithKvCacheProblem;

inline std::int64_t value_dim(const DecodeProblem& p) {
  return p.value_dim > 0 ? p.value_dim : p.head_dim;
}

inline bool is_e4m3(const DecodeProblem& p) { return p.cache_dtype == DType::e4m3; }

inline DecodeShape shape_of(const DecodeProblem& p, const DecodeConfig& c) {
  return decode_shape(static_cast<int>(p.heads), static_cast<int>(p.kv_heads), c.rows);
}

// The most items of all sequences together. Each packed sequence may have a single token in its
// last row tile.
inline std::int64_t most_items(const DecodeProblem& p, const DecodeConfig& c) {
  const DecodeShape shape = shape_of(p, c);
  const int tile_tokens = shape.tile_tokens;
  const std::int64_t row_tiles =
      p.packed ? (p.q_len + (tile_tokens - 1) * std::min(p.batch, p.q_len)) / tile_tokens
               : p.batch * ceil_div(p.q_len, std::int64_t{tile_tokens});
  return row_tiles * p.kv_heads * shape.head_blocks;
}

// The same, if none has more tokens than longest_q_len().
inline std::int64_t expected_items(const DecodeProblem& p, const DecodeConfig& c) {
  const DecodeShape shape = shape_of(p, c);
  const std::int64_t row_tiles =
      p.batch * ceil_div(longest_q_len(p), std::int64_t{shape.tile_tokens});
  return std::min(most_items(p, c), row_tiles * p.kv_heads * shape.head_blocks);
}

// The key tiles that so many tokens of a sequence with so many keys see at most. Those in a window
// may begin anywhere in a tile.
inline std::int64_t seen_tiles(const DecodeProblem& p, std::int64_t q_len, std::int64_t kv_len) {
  constexpr std::int64_t kTileKeys = kDecodeTileKeys;
  const std::int64_t tiles = ceil_div(kv_len, kTileKeys);
  const bool is_limited = p.window_left >= 0 && p.window_left < kv_len;
  return is_limited ? std::min(tiles, ceil_div(p.window_left + q_len - 1, kTileKeys) + 1) : tiles;
}

// The most key tiles that a sequence's tokens see; and the same, if none is longer than expected.
inline std::int64_t most_tiles(const DecodeProblem& p) {
  return seen_tiles(p, p.q_len, p.capacity);
}
inline std::int64_t expected_tiles(const DecodeProblem& p) {
  return seen_tiles(p, longest_q_len(p), longest_kv_len(p));
}

// The splits of an item of a batch-invariant problem, at most.
inline int most_splits(const DecodeProblem& p, const DecodeConfig& c) {
  const std::int64_t row_tiles = ceil_div(p.q_len, std::int64_t{shape_of(p, c).tile_tokens});
  if (!p.packed && row_tiles > kMostSplitRowTiles) {
    return 1;
  }
  const std::int64_t splits = ceil_div(most_tiles(p), std::int64_t{kMinSplitTiles});
  const int most = most_tiles(p) <= kShortTiles ? kShortSplits : kMaxSplits;
  return static_cast<int>(std::min<std::int64_t>(splits, most));
}

// The rows of a partial result.
inline int slot_rows_of(const DecodeProblem& p, const DecodeConfig& c) {
  const DecodeShape shape = shape_of(p, c);
  return shape.tile_heads *
         static_cast<int>(std::min<std::int64_t>(int{shape.tile_tokens}, p.q_len));
}

// The key tiles that a block computes in the time that a merge of parts takes.
inline int merge_tiles_of(int slot_rows, int cluster) {
  return 8 + (slot_rows + 4) / (2 * cluster);
}

}  // namespace tilewright::cuda
