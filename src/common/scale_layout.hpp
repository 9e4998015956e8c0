// Addresses of block scales.
#pragma once

#include <cstdint>

#include "tilewright/nvfp4.hpp"

namespace tilewright {

inline constexpr int kScaleTileRows = 128;
inline constexpr int kScaleTileBlocks = 4;
inline constexpr int kScaleTile_bytes = kScaleTileRows * kScaleTileBlocks;

// Offset of the scale of block `block` of row `row`. Tiles of 128 rows by 4 blocks follow each
// other along K; within one, 32 groups of 16 bytes hold the rows r, r + 32, r + 64, r + 96.
constexpr std::int64_t swizzled_offset(int row, int block, int block_tiles) {
  const std::int64_t tile =
      static_cast<std::int64_t>(row / kScaleTileRows) * block_tiles + block / kScaleTileBlocks;
  return tile * kScaleTile_bytes + row % 32 * 16 + row / 32 % 4 * 4 + block % kScaleTileBlocks;
}

// The `i`th row in the order in which swizzled scales lie, of those of one block.
constexpr int row_in_scale_order(int i) {
  return i / kScaleTileRows * kScaleTileRows + i % 4 * 32 + i / 4 % 32;
}

// The scales of a checked call, either layout. Byte is const in what only reads.
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

  // Of the scales so many rows further on; of swizzled ones, whole tiles.
  constexpr std::int64_t offset_of_rows(int rows) const {
    return layout == ScaleLayout::linear
               ? rows * row_stride
               : std::int64_t{rows / kScaleTileRows} * block_tiles * kScaleTile_bytes;
  }
};

}  // namespace tilewright
