// Packing NVFP4 weights on the CPU: cores share the tiles, and a loop takes the GPU's threads.
#include <array>
#include <cstring>

#include "cpu/cpu_nvfp4.hpp"
#include "cpu/parallel.hpp"

namespace tilewright::cpu {
namespace {

using ScaleWords = std::array<std::uint32_t, WeightTile::kHalves>;

// Where a thread's words lie in a tile.
template <typename Byte>
Byte* codes_of(Byte* tile, int thread, int half) {
  return tile + (thread * WeightTile::kHalves + half) * sizeof(CodeWords);
}
template <typename Byte>
Byte* scales_of(Byte* tile, int thread) {
  return tile + WeightTile::kCode_bytes + thread / kScaleThreads * sizeof(ScaleWords);
}

void pack_tile(const UnpackedWeight<const std::uint8_t>& weight, const WeightTileOrigin& tile,
               std::uint8_t* packed) {
  for (int thread = 0; thread < WeightTile::kThreads; ++thread) {
    ScaleWords scales{};
    for (int half = 0; half < WeightTile::kHalves; ++half) {
      const PackedHalf words = pack_half(weight, tile, thread, half);
      std::memcpy(codes_of(packed, thread, half), &words.codes, sizeof(words.codes));
      scales[half] = words.scales;
    }
    std::memcpy(scales_of(packed, thread), &scales, sizeof(scales));
  }
}

}  // namespace

void unpack_weight_tile(const std::uint8_t* packed, const UnpackedWeight<std::uint8_t>& weight,
                        const WeightTileOrigin& tile) {
  for (int thread = 0; thread < WeightTile::kThreads; ++thread) {
    ScaleWords scales{};
    std::memcpy(&scales, scales_of(packed, thread), sizeof(scales));
    for (int half = 0; half < WeightTile::kHalves; ++half) {
      CodeWords codes{};
      std::memcpy(&codes, codes_of(packed, thread, half), sizeof(codes));
      unpack_codes(codes, weight, tile, thread, half);
      if (thread % kScaleThreads == 0) {
        unpack_scales(scales[half], weight, tile, thread, half);
      }
    }
  }
}

void prepack_nvfp4_weight(const PrepackWeightParams& p, Stream) {
  const WeightTiles tiles(p.weight.batch, p.weight.rows, p.weight.blocks);
  parallel_for_rows(tiles.count(), [&](std::int64_t i) {
    const WeightTileOrigin tile = tiles.origin(i);
    pack_tile(p.weight.skip(tile.weight), tile,
              p.packed + tile.weight * p.packed_batch_stride + tiles.offset(tile));
  });
}

void unpack_nvfp4_weight(const UnpackWeightParams& p, Stream) {
  static constexpr std::array<std::uint8_t, WeightTile::k_bytes> kPadding{};
  const WeightTiles tiles(p.weight.batch, p.weight.scale_rows, p.weight.blocks);
  parallel_for_rows(tiles.count(), [&](std::int64_t i) {
    const WeightTileOrigin tile = tiles.origin(i);
    const bool is_padding = tile.row >= p.weight.rows;
    const std::uint8_t* const packed =
        p.packed + tile.weight * p.packed_batch_stride + tiles.offset(tile);
    unpack_weight_tile(is_padding ? kPadding.data() : packed, p.weight.skip(tile.weight), tile);
  });
}

}  // namespace tilewright::cpu
