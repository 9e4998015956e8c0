// Packing and unpacking a tile of an NVFP4 weight, thread by thread.
#pragma once

#include <array>
#include <cstdint>

#include "common/e2m1.hpp"
#include "common/nvfp4_recipe.hpp"
#include "common/nvfp4_weight_layout.hpp"
#include "common/scale_layout.hpp"

namespace tilewright {

// A batch of weights (rows, 16 blocks) as codes and scales. Byte is const if they are only read.
template <typename Byte>
struct UnpackedWeight {
  Byte* codes = nullptr;
  std::int64_t codes_stride = 0;  // of rows
  std::int64_t codes_batch_stride = 0;
  Scales<Byte> scales;
  std::int64_t scales_batch_stride = 0;
  int batch = 1;
  int rows = 0;
  int blocks = 0;      // of a row
  int scale_rows = 0;  // with the padding of swizzled scales
  int scale_blocks = 0;

  // The same, from weight number `weights` of the batch on.
  constexpr UnpackedWeight skip(int weights) const {
    UnpackedWeight result = *this;
    result.codes += weights * codes_batch_stride;
    result.scales.data += weights * scales_batch_stride;
    return result;
  }

  constexpr bool has(int row, int block) const { return row < rows && block < blocks; }

  // The byte with a column's code and its neighbour's.
  constexpr Byte& codes_at(int row, int column) const {
    return codes[row * codes_stride + column / 2];
  }
};

// A tile of a batch: the number of its weight, and its first row and column there.
struct WeightTileOrigin {
  int weight;
  int row;
  int column;
};

// The tiles of `batch` weights (rows, 16 blocks), numbered in the order in which they lie.
struct WeightTiles {
  constexpr WeightTiles(int batch_size, int rows, int blocks)
      : batch(batch_size),
        row_tiles(static_cast<int>(weight_row_tiles(rows))),
        column_tiles(static_cast<int>(weight_column_tiles(std::int64_t{nvfp4::kBlock} * blocks))) {}

  constexpr std::int64_t count() const { return std::int64_t{batch} * row_tiles * column_tiles; }

  constexpr WeightTileOrigin origin(std::int64_t tile) const {
    const std::int64_t row = tile / column_tiles;
    return {.weight = static_cast<int>(row / row_tiles),
            .row = static_cast<int>(row % row_tiles) * WeightTile::kRows,
            .column = static_cast<int>(tile % column_tiles) * WeightTile::kColumns};
  }

  // Where a tile begins in its packed weight, in bytes.
  constexpr std::int64_t offset(const WeightTileOrigin& tile) const {
    const std::int64_t row = tile.row / WeightTile::kRows;
    return (row * column_tiles + tile.column / WeightTile::kColumns) * WeightTile::k_bytes;
  }

  int batch;
  int row_tiles;
  int column_tiles;
};

inline constexpr int kScaleThreads = 4;  // neighbouring threads that have the same scales

// A thread's words of one half of a tile.
struct PackedHalf {
  CodeWords codes;
  std::uint32_t scales;
};

// The e4m3 scales of a half in pack_scales()'s order: those of its first 16 columns and those of
// the others, each of rows g and g + 8.
using HalfScales = std::array<std::array<std::uint32_t, 2>, 2>;

// The first of the pairs whose scale is scales[second][g8].
constexpr TilePosition first_pair_under(int thread, int half, int second, int g8) {
  return pair_position(thread, half, 4 * second + g8);
}

// A byte of codes as packed scales want them: with the scale's sign changed into theirs, and zeros
// if the scale is zero.
constexpr std::uint32_t codes_under(std::uint32_t codes, std::uint32_t e4m3) {
  constexpr std::uint32_t kSigns = kE2m1Sign | kE2m1Sign << 4;
  const std::uint32_t kept = (e4m3 & 0x7fu) == 0 ? codes & kSigns : codes;
  return (e4m3 & 0x80u) == 0 ? kept : kept ^ kSigns;
}

// The byte of two codes from their pair, as pair_word() made it.
constexpr std::uint32_t codes_of(std::uint32_t pair) {
  const auto code = [](std::uint32_t half) { return (half >> 12 & 8u) | (half >> 6 & 7u); };
  return code(pair) | code(pair >> 16) << 4;
}

constexpr HalfScales load_scales(const UnpackedWeight<const std::uint8_t>& weight,
                                 const WeightTileOrigin& tile, int thread, int half) {
  HalfScales scales{};
  for (int second = 0; second < 2; ++second) {
    for (int g8 = 0; g8 < 2; ++g8) {
      const TilePosition at = first_pair_under(thread, half, second, g8);
      const int row = tile.row + at.row;
      const int block = (tile.column + at.column) / nvfp4::kBlock;
      scales[second][g8] = weight.has(row, block) ? weight.scales.at(row, block) : 0;
    }
  }
  return scales;
}

// Packs a thread's half of a tile. Beyond the weight there are zeros.
constexpr PackedHalf pack_half(const UnpackedWeight<const std::uint8_t>& weight,
                               const WeightTileOrigin& tile, int thread, int half) {
  const HalfScales scales = load_scales(weight, tile, thread, half);
  PairWords pairs{};
  for (int pair = 0; pair < WeightTile::kPairs; ++pair) {
    const TilePosition at = pair_position(thread, half, pair);
    const int row = tile.row + at.row;
    const int column = tile.column + at.column;
    if (weight.has(row, column / nvfp4::kBlock)) {
      const std::uint32_t codes =
          codes_under(weight.codes_at(row, column), scales[pair / 4][pair % 2]);
      pairs[pair] = pair_word(codes & 15u, codes >> 4);
    }
  }
  return {.codes = pack_pairs(pairs),
          .scales = pack_scales(pack_scale(scales[0][0]), pack_scale(scales[0][1]),
                                pack_scale(scales[1][0]), pack_scale(scales[1][1]))};
}

// Writes the codes, except those beyond the weight.
constexpr void unpack_codes(const CodeWords& words, const UnpackedWeight<std::uint8_t>& weight,
                            const WeightTileOrigin& tile, int thread, int half) {
  const PairWords pairs = unpack_pairs(words);
  for (int pair = 0; pair < WeightTile::kPairs; ++pair) {
    const TilePosition at = pair_position(thread, half, pair);
    const int row = tile.row + at.row;
    const int column = tile.column + at.column;
    if (weight.has(row, column / nvfp4::kBlock)) {
      weight.codes_at(row, column) = static_cast<std::uint8_t>(codes_of(pairs[pair]));
    }
  }
}

// Writes the scales that a thread shares with its three neighbours, and the padding.
constexpr void unpack_scales(std::uint32_t word, const UnpackedWeight<std::uint8_t>& weight,
                             const WeightTileOrigin& tile, int thread, int half) {
  for (int second = 0; second < 2; ++second) {
    for (int g8 = 0; g8 < 2; ++g8) {
      const TilePosition at = first_pair_under(thread, half, second, g8);
      const int row = tile.row + at.row;
      const int block = (tile.column + at.column) / nvfp4::kBlock;
      if (row < weight.scale_rows && block < weight.scale_blocks) {
        weight.scales.at(row, block) =
            static_cast<std::uint8_t>(unpack_scale(packed_scale(word, second != 0, g8 != 0)));
      }
    }
  }
}

}  // namespace tilewright
