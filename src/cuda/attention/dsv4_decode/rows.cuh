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

// What is read where there is no row: zeros, in any format.
static __device__ const uint4 kZeros[2 * kKvRowDims / sizeof(uint4)] = {};

// Where a row's parts lie.
struct RowAt {
  const std::uint8_t* data = reinterpret_cast<const std::uint8_t*>(kZeros);
  const std::uint8_t* scales = data;
};

// Loads of a row from memory. The compiler does not move them over a fence ahead of them, which
// would wait for them, as it does with loads through the read-only path.
struct FromMemory {
  __device__ static uint4 load16(const void* address) {
    uint4 x;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address)
                 : "memory");
    return x;
  }
  __device__ static uint2 load8(const void* address) {
    uint2 x;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(address)
                 : "memory");
    return x;
  }
};

// The same of a row that has been copied to SMEM.
struct FromShared {
  __device__ static uint4 load16(const void* address) {
    return *static_cast<const uint4*>(address);
  }
  __device__ static uint2 load8(const void* address) { return *static_cast<const uint2*>(address); }
};

// Two BF16 values times two others.
__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Four E4M3 bytes times a scale, given twice as BF16 of 2^120 times it, in order.
__device__ inline uint2 widen_e4m3(std::uint32_t word, std::uint32_t scale) {
  constexpr std::uint32_t kSigns = 0x80008000u;
  constexpr std::uint32_t kOthers = 0x07f007f0u;
  // Bytes 0 and 1 become the upper ones of two halves, bytes 2 and 3 the lower ones.
  const std::uint32_t mixed = __byte_perm(word, 0, 0x1302);
  return {multiply_bf16x2((mixed & kSigns) | (mixed >> 4 & kOthers), scale),
          multiply_bf16x2((mixed << 8 & kSigns) | (mixed << 4 & kOthers), scale)};
}

// A UE8M0 scale times 2^120, twice, in BF16, whose exponent is the scale's byte plus 120. That goes
// up to 2^7; larger scales, of values that no normalised row has, take a second product, by the
// rest, and so does NaN.
inline constexpr std::uint32_t kMostScale = 127 + 7;
__device__ inline std::uint32_t e8m0_times_2_120(std::uint32_t byte) {
  return __byte_perm(min(byte, kMostScale) + 120u << 7, 0, 0x1010);
}
__device__ inline std::uint32_t rest_of_e8m0(std::uint32_t byte) {
  const std::uint32_t rest =
      byte == kE8m0NaN ? 0x7fc0u : (max(byte, kMostScale) - kMostScale + 127u) << 7;
  return rest | rest << 16;
}
// Is one of four scales larger?
__device__ inline bool exceed_most_scale(std::uint32_t bytes) {
  constexpr std::uint32_t kTop = 0x80808080u;
  constexpr std::uint32_t kToTop = (255u - kMostScale) * 0x01010101u & ~kTop;
  return ((bytes & ~kTop) + kToTop & bytes & kTop) != 0;
}

// ---- The formats. Each has what a lane loads of a row once (Scales), what it loads of a group
// (Raw), from where its part of the row begins, and how the latter becomes 16 BF16 values. Where
// Scales say that `some_exceed`, each group is to be multiplied by the rest of its scale as well.

struct SixteenValues {
  uint4 low;
  uint4 high;

  // Both values of each word times two others.
  __device__ void multiply(std::uint32_t by) {
    for (uint4* half : {&low, &high}) {
      *half = {multiply_bf16x2(half->x, by), multiply_bf16x2(half->y, by),
               multiply_bf16x2(half->z, by), multiply_bf16x2(half->w, by)};
    }
  }
};

// Byte i of an array of words.
__device__ inline std::uint32_t byte_of(const std::uint32_t (&words)[2], int i) {
  return __byte_perm(i < 4 ? words[0] : words[1], 0, 0x4440 | i % 4);
}

template <KvRowFormat kFormat>
struct Format;

template <>
struct Format<KvRowFormat::bf16> {
  struct Scales {
    static constexpr bool some_exceed() { return false; }
  };
  using Raw = SixteenValues;
  static constexpr int kLane_bytes = 32;

  template <typename From = FromMemory>
  __device__ static Scales scales(const std::uint8_t*, int) {
    return {};
  }
  template <typename From = FromMemory>
  __device__ static Raw load(const std::uint8_t* at, int group) {
    return {From::load16(at + group * 128), From::load16(at + group * 128 + 16)};
  }
  __device__ static SixteenValues widen(const Raw& raw, int, const Scales&) { return raw; }
};

// Sixteen E4M3 bytes with one UE8M0 scale.
__device__ inline SixteenValues widen_e4m3x16(const uint4& raw, std::uint32_t byte) {
  const std::uint32_t scale = e8m0_times_2_120(byte);
  const uint2 a = widen_e4m3(raw.x, scale);
  const uint2 b = widen_e4m3(raw.y, scale);
  const uint2 c = widen_e4m3(raw.z, scale);
  const uint2 d = widen_e4m3(raw.w, scale);
  return {{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
}

// UE8M0 scales, a byte a group. kUsed masks the bytes of the second word.
template <std::uint32_t kUsed>
struct GroupScales {
  std::uint32_t words[2];

  __device__ bool some_exceed() const {
    return exceed_most_scale(words[0]) || exceed_most_scale(words[1] & kUsed);
  }
  __device__ std::uint32_t rest(int group) const { return rest_of_e8m0(byte_of(words, group)); }
};

template <>
struct Format<KvRowFormat::e4m3_bf16> {
  using Scales = GroupScales<0x00ffffffu>;  // the last group has none
  struct Raw {
    uint4 low;
  };
  static constexpr int kLane_bytes = 16;

  template <typename From = FromMemory>
  __device__ static Scales scales(const std::uint8_t* at, int) {
    const uint2 words = From::load8(at);
    return {words.x, words.y};
  }
  // The last group's values are BF16: it has the first half of a lane's, and a group behind it, the
  // second one.
  template <typename From = FromMemory>
  __device__ static Raw load(const std::uint8_t* at, int group) {
    constexpr int kLast = kGroups - 1;
    return {From::load16(group < kLast ? at + group * 64
                                       : at + kLast * 64 + threadIdx.x % 4 * kLane_bytes +
                                             (group - kLast) * 16)};
  }
  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    return widen(raw, byte_of(scales.words, group));
  }
  __device__ static SixteenValues widen(const Raw& raw, std::uint32_t scale) {
    return widen_e4m3x16(raw.low, scale);
  }
};

template <>
struct Format<KvRowFormat::e4m3> {
  using Scales = GroupScales<0xffffffffu>;  // of this lane
  struct Raw {
    uint4 low;
  };
  static constexpr int kLane_bytes = 16;

  // Group g has the scales 2 g and 2 g + 1, one for the first half of its lanes.
  template <typename From = FromMemory>
  __device__ static Scales scales(const std::uint8_t* at, int quarter) {
    const uint4 all = From::load16(at);
    const std::uint32_t selector = quarter / 2 == 0 ? 0x6420 : 0x7531;
    return {__byte_perm(all.x, all.y, selector), __byte_perm(all.z, all.w, selector)};
  }
  template <typename From = FromMemory>
  __device__ static Raw load(const std::uint8_t* at, int group) {
    return {From::load16(at + group * 64)};
  }
  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    return widen(raw, byte_of(scales.words, group));
  }
  __device__ static SixteenValues widen(const Raw& raw, std::uint32_t scale) {
    return widen_e4m3x16(raw.low, scale);
  }
};

template <>
struct Format<KvRowFormat::e2m1> {
  struct Scales {
    std::uint32_t words[2];  // of this lane: a byte a group

    static constexpr bool some_exceed() { return false; }
  };
  struct Raw {
    uint2 codes;
  };
  static constexpr int kLane_bytes = 8;

  // Group g has the scales 4 g to 4 g + 3, one for each of its lanes.
  template <typename From = FromMemory>
  __device__ static Scales scales(const std::uint8_t* at, int quarter) {
    const uint4 low = From::load16(at);
    const uint4 high = From::load16(at + 16);
    const std::uint32_t selector = quarter | (quarter + 4) << 4;
    const auto gather = [&](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
      return __byte_perm(__byte_perm(a, b, selector), __byte_perm(c, d, selector), 0x5410);
    };
    return {gather(low.x, low.y, low.z, low.w), gather(high.x, high.y, high.z, high.w)};
  }
  template <typename From = FromMemory>
  __device__ static Raw load(const std::uint8_t* at, int group) {
    return {From::load8(at + group * 32)};
  }

  __device__ static SixteenValues widen(const Raw& raw, int group, const Scales& scales) {
    return widen(raw, byte_of(scales.words, group));
  }
  // The codes are widened where this is called, and not while the caller waits before: there are
  // no registers for that.
  __device__ static SixteenValues widen(Raw raw, std::uint32_t byte) {
    asm volatile("" : "+r"(raw.codes.x), "+r"(raw.codes.y));
    const float scale = e4m3_to_float(byte) * 0x1p6f;
    const std::uint32_t factor = pack_bf16x2(scale, scale);
    SixteenValues values{widen(raw.codes.x), widen(raw.codes.y)};
    values.multiply(factor);
    return values;
  }

 private:
  // Eight codes, in order, times 2^-6.
  __device__ static uint4 widen(std::uint32_t codes) {
    const std::uint32_t even_above = codes << 4;  // the upper half of byte i is code 2 i
    return {widen_two(__byte_perm(codes, even_above, 0x0040)),
            widen_two(__byte_perm(codes, even_above, 0x1050)),
            widen_two(__byte_perm(codes, even_above, 0x2060)),
            widen_two(__byte_perm(codes, even_above, 0x3070))};
  }
  // Two codes in the highest bits of both halves. Their sign, exponent and mantissa go where BF16
  // has them. That is the value times 2^-126, subnormals included, and the scale may be too large
  // to make up for it with one product.
  __device__ static std::uint32_t widen_two(std::uint32_t codes) {
    constexpr std::uint32_t k2_120 = (127u + 120u << 7) * 0x00010001u;
    return multiply_bf16x2((codes & 0x80008000u) | (codes >> 6 & 0x01c001c0u), k2_120);
  }
};

}  // namespace tilewright::cuda::dsv4
