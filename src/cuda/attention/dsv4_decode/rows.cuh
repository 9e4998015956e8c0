// Rows of a KV cache on their way to SMEM: four neighbouring lanes take a group of 64 dims, 16 dims
// each, widen them to BF16, and store them as two vectors of 16 bytes.
//
// E4M3 is widened by moving its bits: sign, exponent and mantissa go where BF16 has them, which
// gives value * 2^-120, subnormals included, and one exact product by the scale times 2^120 does
// the rest. E2M1 becomes E4M3 on the way, by a table. A value that BF16 cannot hold exactly does
// not occur: E4M3 has 4 significant bits, a product of E2M1 and its E4M3 scale has 6.
//
// Formats   tilewright/kv_rows.hpp
#pragma once

#include "common/kv_row.hpp"
#include "cuda/common/numeric.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kGroups = 8;  // of 64 dims of a row

// Where a row's parts lie; null: there is no such row, and zeros are read.
struct RowAt {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
};

__device__ inline uint4 load16(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}

// Two BF16 values times two others.
__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The bytes of `word` that `selector` names, each the upper byte of 16 bits.
template <std::uint32_t kSelector>
__device__ std::uint32_t spread(std::uint32_t word) {
  return __byte_perm(word, 0, kSelector);
}

// Four E4M3 bytes times a scale, given twice as BF16 of 2^120 times it, in order.
__device__ inline uint2 widen_e4m3(std::uint32_t word, std::uint32_t scale) {
  const auto widen = [&](std::uint32_t bytes) {
    return multiply_bf16x2((bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u), scale);
  };
  return {widen(spread<0x1404>(word)), widen(spread<0x3424>(word))};
}

// A UE8M0 scale times 2^120, twice, in BF16, whose exponent is the scale's byte plus 120. 255 gives
// NaN. Scales above 2^7 go as far as BF16's exponents do; see widen_e4m3x16().
inline constexpr std::uint32_t kMostScale = 127 + 7;
__device__ inline std::uint32_t e8m0_times_2_120(std::uint32_t byte) {
  const std::uint32_t bits = byte == kE8m0NaN ? 0x7fc0u : (min(byte, kMostScale) + 120u) << 7;
  return bits | bits << 16;
}

// ---- The formats. Each has what a lane loads of a row once (Scales), what it loads of a group
// (Raw), and how the latter becomes 16 BF16 values.

struct SixteenValues {
  uint4 low;
  uint4 high;
};

template <KvRowFormat kFormat>
struct Format;

template <>
struct Format<KvRowFormat::bf16> {
  struct Scales {};
  using Raw = SixteenValues;

  __device__ static Scales scales(const std::uint8_t*, int) { return {}; }
  __device__ static Raw load(const std::uint8_t* row, int group, int quarter) {
    const std::uint8_t* const at = row + group * 128 + quarter * 32;
    return {load16(at), load16(at + 16)};
  }
  __device__ static SixteenValues widen(const Raw& raw, int, const Scales&) { return raw; }
};

// Sixteen E4M3 bytes with one UE8M0 scale. Scales above 2^7, of values that no normalised row has,
// take a second product.
__device__ inline SixteenValues widen_e4m3x16(const uint4& raw, std::uint32_t byte) {
  const std::uint32_t scale = e8m0_times_2_120(byte);
  const uint2 a = widen_e4m3(raw.x, scale);
  const uint2 b = widen_e4m3(raw.y, scale);
  const uint2 c = widen_e4m3(raw.z, scale);
  const uint2 d = widen_e4m3(raw.w, scale);
  SixteenValues values{{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
  if (byte > kMostScale) {
    const std::uint32_t rest = (byte - kMostScale + 127u) << 7;
    for (uint4* half : {&values.low, &values.high}) {
      *half = {
          multiply_bf16x2(half->x, rest | rest << 16), multiply_bf16x2(half->y, rest | rest << 16),
          multiply_bf16x2(half->z, rest | rest << 16), multiply_bf16x2(half->w, rest | rest << 16)};
    }
  }
  return values;
}

// Byte i of an array of words.
__device__ inline std::uint32_t byte_of(const std::uint32_t (&words)[2], int i) {
  return (i < 4 ? words[0] : words[1]) >> 8 * (i % 4) & 0xffu;
}

template <>
struct Format<KvRowFormat::e4m3_bf16> {
  struct Scales {
    std::uint32_t words[2];
  };
  using Raw = SixteenValues;

  __device__ static Scales scales(const std::uint8_t* at, int) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(at));
    return {words.x, words.y};
  }
  __device__ static Raw load(const std::uint8_t* row, int group, int quarter) {
    if (group == kGroups - 1) {
      const std::uint8_t* const at = row + group * 64 + quarter * 32;
      return {load16(at), load16(at + 16)};
    }
    return {load16(row + group * 64 + quarter * 16), {}};
  }
  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    if (group == kGroups - 1) {
      return raw;
    }
    return widen_e4m3x16(raw.low, byte_of(scales.words, group));
  }
};

template <>
struct Format<KvRowFormat::e4m3> {
  struct Scales {
    std::uint32_t words[2];  // of this lane: a byte a group
  };
  struct Raw {
    uint4 low;
  };

  // Group g has the scales 2 g and 2 g + 1, one for the first half of its lanes.
  __device__ static Scales scales(const std::uint8_t* at, int quarter) {
    const uint4 all = load16(at);
    const std::uint32_t selector = quarter / 2 == 0 ? 0x6420 : 0x7531;
    return {__byte_perm(all.x, all.y, selector), __byte_perm(all.z, all.w, selector)};
  }
  __device__ static Raw load(const std::uint8_t* row, int group, int quarter) {
    return {load16(row + group * 64 + quarter * 16)};
  }
  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    return widen_e4m3x16(raw.low, byte_of(scales.words, group));
  }
};

template <>
struct Format<KvRowFormat::e2m1> {
  struct Scales {
    std::uint32_t words[2];  // of this lane: a byte a group
  };
  struct Raw {
    uint2 codes;
  };

  // Group g has the scales 4 g to 4 g + 3, one for each of its lanes.
  __device__ static Scales scales(const std::uint8_t* at, int quarter) {
    const uint4 low = load16(at);
    const uint4 high = load16(at + 16);
    const std::uint32_t selector = quarter | (quarter + 4) << 4;
    const auto gather = [&](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
      return __byte_perm(__byte_perm(a, b, selector), __byte_perm(c, d, selector), 0x5410);
    };
    return {gather(low.x, low.y, low.z, low.w), gather(high.x, high.y, high.z, high.w)};
  }
  __device__ static Raw load(const std::uint8_t* row, int group, int quarter) {
    return {__ldg(reinterpret_cast<const uint2*>(row + group * 32 + quarter * 8))};
  }

  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    const float scale = e4m3_to_float(byte_of(scales.words, group)) * 0x1p114f;
    const std::uint32_t factor = pack_bf16x2(scale, scale);
    const uint2 a = widen_e4m3(e4m3_times_64(raw.codes.x), factor);
    const uint2 b = widen_e4m3(e4m3_times_64(raw.codes.x >> 16), factor);
    const uint2 c = widen_e4m3(e4m3_times_64(raw.codes.y), factor);
    const uint2 d = widen_e4m3(e4m3_times_64(raw.codes.y >> 16), factor);
    return {{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
  }

 private:
  // Four codes as E4M3 bytes of 64 times their values, which are looked up by three bits of each:
  // 0, 32, 64, 96, 128, 192, 256, 384. The factor keeps the scale's own in range.
  __device__ static std::uint32_t e4m3_times_64(std::uint32_t codes) {
    return __byte_perm(0x6c686000u, 0x7c787470u, codes & 0x7777u) |
           __byte_perm(0x8000u, 0, codes >> 3 & 0x1111u);
  }
};

}  // namespace tilewright::cuda::dsv4
