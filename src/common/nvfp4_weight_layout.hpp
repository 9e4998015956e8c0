// The layout of a packed NVFP4 weight, which prepack_nvfp4_weight() writes and the kernel nvfp4
// reads. docs/nvfp4.md describes it at length; each change of it takes a new kNvfp4WeightLayout.
//
// A weight (N, K) is cut into tiles of 64 x 64. Zeros pad its rows to a multiple of 64 and its
// columns to one of 128. Tile (i, j) is number i * K_tiles + j. A tile has 2304 bytes:
//
//   2048 codes    16 bytes for each thread of a warpgroup: the values that the thread holds of the
//                 tile in WGMMA's A operand, in two halves of 32 columns, two words each
//    256 scales   8 bytes for each four threads, which have the same rows: a word for each half
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "common/block_scale.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright {

struct WeightTile {
  static constexpr int kRows = 64;
  static constexpr int kColumns = 64;
  static constexpr int kPaddedColumns = 128;  // K is padded to a multiple of this
  static constexpr int kCode_bytes = kRows * kColumns / 2;
  static constexpr int kScale_bytes = kRows * kColumns / 16;
  static constexpr int k_bytes = kCode_bytes + kScale_bytes;

  static constexpr int kThreads = 128;
  static constexpr int kHalves = 2;
  static constexpr int kPairs = 8;  // a thread's pairs of neighbouring columns in one half
  static constexpr int kCodeWords = 2;
};
static_assert(WeightTile::k_bytes == 2304);

constexpr std::int64_t weight_row_tiles(std::int64_t rows) {
  return (rows + WeightTile::kRows - 1) / WeightTile::kRows;
}

constexpr std::int64_t weight_column_tiles(std::int64_t columns) {
  constexpr int kPadded = WeightTile::kPaddedColumns;
  return (columns + kPadded - 1) / kPadded * (kPadded / WeightTile::kColumns);
}

static_assert(packed_nvfp4_weight_shape(65, 144)[0] == weight_row_tiles(65));
static_assert(packed_nvfp4_weight_shape(65, 144)[1] ==
              weight_column_tiles(144) * WeightTile::k_bytes);

// Where the first value of a thread's pair lies in a tile; the second is right of it. The order is
// that of WGMMA's registers: m64k16 after m64k16, rows g and g + 8 alternately.
struct TilePosition {
  int row;
  int column;
};

constexpr TilePosition pair_position(int thread, int half, int pair) {
  return {.row = thread / 32 * 16 + thread % 32 / 4 + pair % 2 * 8,
          .column = half * 32 + pair / 4 * 16 + pair / 2 % 2 * 8 + thread % 4 * 2};
}

// Codes. A pair is a word with the first value's sign in bit 15 and its other three bits in bits 8
// ... 6, where a BF16 number has the end of its exponent and the start of its mantissa. The second
// value lies 16 bits above. Read as BF16, they are the values times 2^-126.
//
// A pair takes eight of a word's 32 bits; rotated by 0, 4 and 10, three pairs take 24. The bits
// that are left in two words hold two more pairs. So the words a and b hold eight pairs:
//
//   pairs 0, 1, 2 = a, a >>> 4, a << 6      each masked by kPairMask
//   pairs 3, 4, 5 = b, b >>> 4, b << 6
//   rest          = a where kRestMask is set, b >>> 2 elsewhere
//   pairs 6, 7    = rest >>> 6, rest << 4
using PairWords = std::array<std::uint32_t, WeightTile::kPairs>;
using CodeWords = std::array<std::uint32_t, WeightTile::kCodeWords>;

inline constexpr std::uint32_t kPairMask = 0x81c081c0u;
inline constexpr std::uint32_t kRestMask = 0x60306030u;

constexpr std::uint32_t pair_word(std::uint32_t first, std::uint32_t second) {
  const auto place = [](std::uint32_t code) { return (code & 8u) << 12 | (code & 7u) << 6; };
  return place(first) | place(second) << 16;
}

constexpr CodeWords pack_pairs(const PairWords& pairs) {
  const std::uint32_t rest = std::rotl(pairs[6], 6) | pairs[7] >> 4;
  return {pairs[0] | std::rotl(pairs[1], 4) | pairs[2] >> 6 | (rest & kRestMask),
          pairs[3] | std::rotl(pairs[4], 4) | pairs[5] >> 6 | std::rotl(rest & ~kRestMask, 2)};
}

constexpr PairWords unpack_pairs(const CodeWords& words) {
  const auto [a, b] = words;
  const std::uint32_t rest = (a & kRestMask) | (std::rotr(b, 2) & ~kRestMask);
  return {a & kPairMask,
          std::rotr(a, 4) & kPairMask,
          a << 6 & kPairMask,
          b & kPairMask,
          std::rotr(b, 4) & kPairMask,
          b << 6 & kPairMask,
          std::rotr(rest, 6) & kPairMask,
          rest << 4 & kPairMask};
}

// Scales. A packed scale is an E4M3 number whose subnormals have been made normal: five bits of
// exponent (of the scale times 2^7, with FP16's bias) and three of mantissa. 0xff is NaN. It has no
// sign: if a scale is negative, its codes change theirs. Nor is there a zero: if a scale is zero,
// its codes are zeros with their signs, and the byte is 0, which stands for 2^-22.
inline constexpr int kPackedScaleExponent = 7;
inline constexpr std::uint32_t kPackedScaleNaN = 0xff;

constexpr std::uint32_t pack_scale(std::uint32_t e4m3) {
  const std::uint32_t magnitude = e4m3 & 0x7fu;
  if (magnitude == kE4m3NaN) {
    return kPackedScaleNaN;
  }
  if (magnitude == 0) {
    return 0;
  }
  constexpr int kRebias = (127 - 15 - kPackedScaleExponent)
                          << 3;  // FP32's exponents lie further up
  return (std::bit_cast<std::uint32_t>(e4m3_to_float(magnitude)) >> 20) - kRebias;
}

constexpr float packed_scale_to_float(std::uint32_t packed) {
  if (packed == kPackedScaleNaN) {
    return e4m3_to_float(kE4m3NaN);
  }
  constexpr std::uint32_t kRebias = (127 - 15 - kPackedScaleExponent) << 3;
  return packed == 0 ? 0.0f : std::bit_cast<float>((packed + kRebias) << 20);
}

constexpr std::uint32_t unpack_scale(std::uint32_t packed) {
  return packed == kPackedScaleNaN ? kE4m3NaN : float_to_e4m3(packed_scale_to_float(packed));
}

// A word has the scales of rows g and g + 8: in bits 4 ... 11 and 20 ... 27 those of the first 16
// columns of a half, and those of the other 16 columns eight bits above, wrapped round the end of
// the word.
constexpr std::uint32_t pack_scales(std::uint32_t first_g, std::uint32_t first_g8,
                                    std::uint32_t second_g, std::uint32_t second_g8) {
  return std::rotl(first_g | first_g8 << 16, 4) | std::rotl(second_g | second_g8 << 16, 12);
}

constexpr std::uint32_t packed_scale(std::uint32_t word, bool is_second, bool is_row_g8) {
  return std::rotr(word, 4 + (is_second ? 8 : 0) + (is_row_g8 ? 16 : 0)) & 0xffu;
}

}  // namespace tilewright
