// How the work of dsv4_attention() is dealt out. An item is a tile of 64 rows, (token, head) pairs
// of one request, with all keys that they see. Its keys come in tiles of 64, scope by scope, and
// two neighbouring tiles are a pair. An item with many pairs is cut into parts. Results of pairs
// are merged in their order, and those of parts in theirs. Both follow from the item's own keys
// alone, so that a row's bits do not depend on the batch, nor on the blocks that share a part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "common/divisor.hpp"

namespace tilewright::cuda::dsv4 {

inline constexpr int kDims = 512;      // of a key, which is its value, too
inline constexpr int kRows = 64;       // of an item
inline constexpr int kFewRows = 16;    // of an item, at most, whose GEMMs are transposed
inline constexpr int kTileKeys = 64;   // of a key tile
inline constexpr int kMostTokens = 8;  // new tokens of a request
inline constexpr int kPairTiles = 2;
inline constexpr int kOnePartTiles = 18;   // key tiles that are one part, at most
inline constexpr int kPartTiles = 10;      // of a part where there are more, until there are
inline constexpr int kMostParts = 16;      // so many parts of an item
inline constexpr int kWidePartTiles = 12;  // of a part where two items have the same keys
inline constexpr int kTwins = 2;           // blocks that bring the keys of two such items together

// Slots of a unit that blocks share, at most; a slot has 128 KB. Where there are more pairs, the
// first block takes those that are left.
inline constexpr int kMostPairSlots = 9;

// A cluster that spreads a part has a block for every 64 columns of O. In a round each block has
// one pair. kSpreadSlots slots of the workspace hold P and statistics of a round's pairs, and of
// those of the round before.
inline constexpr int kSpreadBlocks = 8;
inline constexpr int kSpreadPairs = 5;  // whose P is in SMEM at once
inline constexpr int kSpreadSlots = 3;

// The key tiles of a part, at most, of an item that is one of `head_tiles` with the same keys.
TILEWRIGHT_HOST_DEVICE constexpr int part_tiles(int head_tiles) {
  return head_tiles > 1 ? kWidePartTiles : kPartTiles;
}

// The parts of an item with so many key tiles. An item without keys has one, too.
TILEWRIGHT_HOST_DEVICE constexpr int parts_of_tiles(int tiles, int head_tiles) {
  const int each = part_tiles(head_tiles);
  const int parts = tiles <= kOnePartTiles ? 1 : (tiles + each - 1) / each;
  return parts > kMostParts ? kMostParts : parts;
}

TILEWRIGHT_HOST_DEVICE constexpr int pairs_of_tiles(int tiles) {
  return (tiles + kPairTiles - 1) / kPairTiles;
}

// The first of an item's pairs that is in part `part`; of part `parts`, the end. The first part is
// the longest.
TILEWRIGHT_HOST_DEVICE constexpr int first_pair(int part, int parts, int pairs) {
  const int each = pairs / parts;
  const int longer = pairs - each * parts;  // parts that have one more
  return part * each + (part < longer ? part : longer);
}

// The most pairs of a part, where an item has so many tiles.
TILEWRIGHT_HOST_DEVICE constexpr int most_pairs_of_part(int tiles, int parts) {
  return first_pair(1, parts, pairs_of_tiles(tiles));
}

// How blocks share a unit's pairs. Block 0 has the first `merged` of them, and merges them. The
// others leave the results of each of their pairs in a slot; there are `slots`, of which the first
// is block 0's.
TILEWRIGHT_HOST_DEVICE constexpr int merged_pairs(int pairs, const Divisor& blocks, int slots) {
  const int even = (pairs + blocks - 1) / blocks;
  const int least = pairs - (slots - 1);
  return even > least ? even : least;
}

// How units are dealt to blocks. Whole ones go round the blocks. The last ones, too few for another
// round, are shared by several blocks each.
struct Deal {
  int whole = 0;   // units [0, whole) are a block's each
  int shares = 1;  // blocks that share each of the others

  // Of units with so many pairs.
  static constexpr Deal of(int units, int blocks, int pairs) {
    const int last = units % blocks;
    const int shares = last > 0 ? std::min(blocks / last, pairs) : 1;
    return {.whole = shares > 1 ? units - last : units, .shares = shares};
  }
};

// What dsv4_decode and dsv4_spread tell the launch that merges of an item.
struct alignas(16) ItemRecord {
  int request;
  int token0;  // as Unit has them
  int tokens;
  int head0;
  int heads;
  int parts;
  int tiles;  // of all parts
};

// How rows are cut into items. Tokens share an item if they share keys, which they do in ranges.
struct ItemShape {
  Divisor tile_heads{1};   // heads of an item
  int tile_tokens = 0;     // tokens of an item, at most
  Divisor head_tiles{1};   // items beside each other of the same tokens
  Divisor token_tiles{1};  // items behind each other of a request
  // Items of a packed tensor that have one token each are counted by tokens, not by requests.
  bool is_by_token = false;

  constexpr ItemShape() = default;
  constexpr ItemShape(int heads, bool shares_keys, int q_len, bool is_packed)
      : tile_heads(std::min(heads, kRows)),
        tile_tokens(!shares_keys ? 1
                                 : std::min({kRows / std::min(heads, kRows), kMostTokens,
                                             is_packed ? kMostTokens : std::max(q_len, 1)})),
        head_tiles(ceil_div(heads, kRows)),
        token_tiles(ceil_div(is_packed ? kMostTokens : q_len, tile_tokens)),
        is_by_token(is_packed && tile_tokens == 1) {}

  // All items of a call. q_len is as of the params: packed, of all requests together.
  constexpr std::int64_t items(int batch, int q_len) const {
    return (is_by_token ? q_len : std::int64_t{batch} * token_tiles) * head_tiles;
  }
};

}  // namespace tilewright::cuda::dsv4
