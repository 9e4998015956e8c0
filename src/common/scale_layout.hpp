// Addresses of block scales.
#pragma once

#include <cstdint>

#include "tilewright/nvfp4.hpp"

namespace tilewright {

inline constexpr int kScaleTileRows = 128;
inline constexpr int kScaleTileBlocks = 4;
inline constexpr int kScaleTile_bytes = kScaleTileRows * kScaleTileBlocks;

// The offset of the scale of row `row` and block `block`. Tiles of 128 rows by 4 blocks follow each
// other along K; in a tile, 32 groups of 16 bytes hold rows r, r + 32, r + 64 and r + 96.
constexpr std::int64_t swizzled_offset(int row, int block, int block_tiles) {
  const std::int64_t tile =
      static_cast<std::int64_t>(row / kScaleTileRows) * block_tiles + block / kScaleTileBlocks;
  return tile * kScaleTile_bytes + row % 32 * 16 + row / 32 % 4 * 4 + block % kScaleTileBlocks;
}

// The `i`th row in the order in which the swizzled scales of one block lie.
constexpr int row_in_scale_order(int i) {
  return i / kScaleTileRows * kScaleTileRows + i % 4 * 32 + i / 4 % 32;
}

// The scales of a checked call, in either layout. Byte is const if they are only read.
template <typename Byte>
struct Scales {
  Byte* data = nullptr;
  ScaleLayout layout = ScaleLayout::linear;
  std::int64_t row_stride = 0;  // linear
  int block_tiles = 0;          // swizzled: tiles along K

  constexpr Byte& at(int row, int block) const {
    return data[layout == ScaleLayout::linear ? row * row_stride + block
                                              : swizzled_offset(row, block, block_tiles)];
  }

  // The offset of scales `rows` rows further on; if swizzled, `rows` must be whole tiles.
  constexpr std::int64_t offset_of_rows(int rows) const {
    return layout == ScaleLayout::linear
               ? rows * row_stride
               : std::int64_t{rows / kScaleTileRows} * block_tiles * kScaleTile_bytes;
  }
};

}  // namespace tilewright
