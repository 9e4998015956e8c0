// How the work of dsv4_attention() is dealt out. An item is a tile of 64 rows, (token, head) pairs
// of one request, with all keys that they see. Its keys come in tiles of 64, scope by scope. An
// item with many key tiles is cut into parts, which are merged in their order. The cut depends on
// the item's own keys alone, so that a row's bits do not depend on the batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "common/divisor.hpp"

namespace tilewright::cuda::dsv4 {

inline constexpr int kDims = 512;      // of a key, which is its value, too
inline constexpr int kRows = 64;       // of an item
inline constexpr int kTileKeys = 64;   // of a key tile
inline constexpr int kMostTokens = 8;  // new tokens of a request
inline constexpr int kPartTiles = 18;  // key tiles of a part, at most, until there are
inline constexpr int kMostParts = 16;  // so many parts of an item

// The parts of an item with so many key tiles. An item without keys has one, too.
TILEWRIGHT_HOST_DEVICE constexpr int parts_of_tiles(int tiles) {
  const int parts = (tiles + kPartTiles - 1) / kPartTiles;
  return parts < 1 ? 1 : parts > kMostParts ? kMostParts : parts;
}

// The first key tile of a part; of part `parts`, the end.
TILEWRIGHT_HOST_DEVICE constexpr int first_tile(int part, int parts, int tiles) {
  return static_cast<int>(std::int64_t{part} * tiles / parts);
}

// How rows are cut into items. Tokens share an item if they share keys, which they do in ranges.
struct ItemShape {
  Divisor tile_heads{1};  // heads of an item
  int tile_tokens = 0;    // tokens of an item, at most
  int head_tiles = 0;     // items beside each other of the same tokens
  int token_tiles = 0;    // items behind each other of a request
  // Items of a packed tensor that have one token each are counted by tokens, not by requests.
  bool is_by_token = false;

  constexpr ItemShape() = default;
  constexpr ItemShape(int heads, bool shares_keys, int q_len, bool is_packed)
      : tile_heads(std::min(heads, kRows)),
        tile_tokens(shares_keys ? std::min(kRows / std::min(heads, kRows), kMostTokens) : 1),
        head_tiles(ceil_div(heads, kRows)),
        token_tiles(ceil_div(is_packed ? kMostTokens : q_len, tile_tokens)),
        is_by_token(is_packed && tile_tokens == 1) {}

  // All items of a call. q_len is as of the params: packed, of all requests together.
  constexpr std::int64_t items(int batch, int q_len) const {
    return (is_by_token ? q_len : std::int64_t{batch} * token_tiles) * head_tiles;
  }
};

}  // namespace tilewright::cuda::dsv4
