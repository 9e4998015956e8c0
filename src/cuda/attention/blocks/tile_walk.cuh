// The ladder's tiles: which key tiles a block walks over, and which keys a query row sees.
#pragma once

#include "common/ceil_div.hpp"
#include "ops/attention/params.hpp"

namespace tilewright::cuda {

// A rung's compile-time config: its tile sizes, threads, and stages of K and V.
struct AttnConfig {
  int head_dim;
  int br;  // query rows of a tile
  int bc;  // keys of a tile
  int threads;
  int stages = 1;
};

// A query row of the ladder sees the keys [0, limit(row)).
struct KeyRange {
  int kv_len;
  int diagonal;  // row i sees keys up to and including i + diagonal, where causal
  bool causal;

  __host__ __device__ explicit KeyRange(const AttentionParams& p)
      : kv_len(p.kv_len), diagonal(p.kv_len - p.q_len), causal(p.causal) {}

  __host__ __device__ int limit(int row) const {
    const int causal_limit = row + diagonal + 1;
    const int limit = causal && causal_limit < kv_len ? causal_limit : kv_len;
    return limit > 0 ? limit : 0;
  }
};

// A block's work: a tile of query rows of one head, and the key tiles [0, kv_tiles). Every row sees
// the first `full_tiles` key tiles whole.
struct TileWalk {
  int batch;
  int head;
  int kv_head;
  int row0;
  int kv_tiles;
  int full_tiles;
};

// Neighbouring blocks compute tiles of the same head, so that they share its K and V in the L2
// cache. Under a causal mask the longest tiles come first.
__host__ __device__ inline TileWalk tile_walk(const AttentionParams& p, const AttnConfig& c,
                                              int block) {
  const int row_tiles = ceil_div(p.q_len, c.br);
  const int tile = row_tiles - 1 - block % row_tiles;
  const int batch_head = block / row_tiles;
  const KeyRange keys(p);
  TileWalk walk;
  walk.batch = batch_head / p.heads;
  walk.head = batch_head % p.heads;
  walk.kv_head = walk.head / (p.heads / p.kv_heads);
  walk.row0 = tile * c.br;
  const int last_row = walk.row0 + c.br < p.q_len ? walk.row0 + c.br - 1 : p.q_len - 1;
  walk.kv_tiles = ceil_div(keys.limit(last_row), c.bc);
  walk.full_tiles = keys.limit(walk.row0) / c.bc;
  return walk;
}

__host__ __device__ inline int tile_count(const AttentionParams& p, const AttnConfig& c) {
  return ceil_div(p.q_len, c.br) * p.heads * p.batch;
}

}  // namespace tilewright::cuda
