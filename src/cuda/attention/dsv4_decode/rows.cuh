// Rows of a KV cache on their way to SMEM: four neighbouring lanes take a group of 64 dims, 16 dims
// each, widen them to BF16, and store them as two vectors of 16 bytes.
//
// E4M3 is widened by moving its bits: sign, exponent and mantissa go where BF16 has them, which
// gives value * 2^-120, subnormals included, and one exact product by the scale times 2^120 does
// the rest. E2M1's go there, too: that is value * 2^-126. A value that BF16 cannot hold exactly
// does not occur: E4M3 has 4 significant bits, a product of E2M1 and its E4M3 scale has 6.
//
// A large scale, which no normalised row has, is beyond BF16 when it is multiplied by 2^120 or
// 2^126. Then widen() takes one that is `within`, and a second product, by the `rest`, makes up for
// it.
//
// Formats   tilewright/kv_rows.hpp
#pragma once

#include "common/kv_row.hpp"
#include "cuda/attention/blocks/widen_e4m3.cuh"
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
  return {multiply_bf16x2(widen_without_factor<cute::bfloat16_t>(spread<0, 1>(word)), scale),
          multiply_bf16x2(widen_without_factor<cute::bfloat16_t>(spread<2, 3>(word)), scale)};
}

// Byte i of an array of words, in both halves.
__device__ inline std::uint32_t byte_twice(const std::uint32_t (&words)[2], int i) {
  return __byte_perm(i < 4 ? words[0] : words[1], 0, 0x4040 | 0x101 * (i % 4));
}
__device__ constexpr std::uint32_t twice(std::uint32_t half) { return half * 0x00010001u; }

// ---- The formats. Each has what a lane loads of a row once (Scales), what it loads of a group
// (Raw), from where its part of the row begins, and how the latter becomes 16 BF16 values. widen()
// takes the row's Scales, or the byte of the group's scale in both halves of a word. No scale may
// exceed: widen_any() takes any.

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

template <KvRowFormat kFormat>
struct Format;

// A group of codes times its scale, whatever that is.
template <typename F>
__device__ SixteenValues widen_any(const typename F::Raw& raw, int group,
                                   const typename F::Scales& scales) {
  SixteenValues values = F::widen(raw, group, scales.within());
  values.multiply(scales.rest(group));
  return values;
}

template <>
struct Format<KvRowFormat::bf16> {
  struct Scales {
    __device__ static constexpr bool exceeds(std::uint32_t) { return false; }
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

// UE8M0 scales of E4M3, a byte a group. kUsed masks the bytes of the second word.
template <std::uint32_t kUsed>
struct GroupScales {
  std::uint32_t words[2];

  __device__ static bool exceeds(std::uint32_t byte) { return byte > kMost; }
  __device__ bool some_exceed() const {
    return one_exceeds(words[0]) || one_exceeds(words[1] & kUsed);
  }
  __device__ GroupScales within() const {
    return {__vminu4(words[0], kMost * 0x01010101u), __vminu4(words[1], kMost * 0x01010101u)};
  }
  __device__ std::uint32_t rest(int group) const {
    const std::uint32_t byte = byte_twice(words, group) & 0xff;
    return twice(byte == kE8m0NaN ? 0x7fc0u : (max(byte, kMost) - kMost + 127u) << 7);
  }

 private:
  static constexpr std::uint32_t kMost = 127 + 7;  // times 2^120, its exponent is BF16's largest

  __device__ static bool one_exceeds(std::uint32_t bytes) {
    constexpr std::uint32_t kTop = 0x80808080u;
    constexpr std::uint32_t kToTop = (255u - kMost) * 0x01010101u & ~kTop;
    return ((bytes & ~kTop) + kToTop & bytes & kTop) != 0;
  }
};

// Sixteen E4M3 bytes with one UE8M0 scale, given twice. BF16's exponent of 2^120 times the scale is
// its byte plus 120.
__device__ inline SixteenValues widen_e4m3x16(const uint4& raw, std::uint32_t bytes) {
  const std::uint32_t scale = bytes * 128u + twice(120u << 7);
  const uint2 a = widen_e4m3(raw.x, scale);
  const uint2 b = widen_e4m3(raw.y, scale);
  const uint2 c = widen_e4m3(raw.z, scale);
  const uint2 d = widen_e4m3(raw.w, scale);
  return {{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
}

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
    return widen(raw, byte_twice(scales.words, group));
  }
  __device__ static SixteenValues widen(const Raw& raw, std::uint32_t scale_twice) {
    return widen_e4m3x16(raw.low, scale_twice);
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
    return widen(raw, byte_twice(scales.words, group));
  }
  __device__ static SixteenValues widen(const Raw& raw, std::uint32_t scale_twice) {
    return widen_e4m3x16(raw.low, scale_twice);
  }
};

template <>
struct Format<KvRowFormat::e2m1> {
  struct Scales {
    std::uint32_t words[2];  // of this lane: a byte a group

    // From 4 on, 2^126 times a scale is beyond BF16. widen() takes none with a sign.
    __device__ static bool exceeds(std::uint32_t byte) { return byte >= kFour; }
    __device__ bool some_exceed() const { return one_exceeds(words[0]) || one_exceeds(words[1]); }
    __device__ Scales within() const { return {within(words[0]), within(words[1])}; }
    __device__ std::uint32_t rest(int group) const {
      const std::uint32_t byte = byte_twice(words, group) & 0xff;
      const float scale = exceeds(byte) ? e4m3_to_float(byte) : 1.0f;
      return pack_bf16x2(scale, scale);
    }

   private:
    static constexpr std::uint32_t kOne = 0x38;
    static constexpr std::uint32_t kFour = 0x48;

    __device__ static bool one_exceeds(std::uint32_t bytes) {
      constexpr std::uint32_t kTop = 0x80808080u;
      constexpr std::uint32_t kToTop = 0x80808080u - kFour * 0x01010101u;
      return (((bytes & ~kTop) + kToTop | bytes) & kTop) != 0;
    }
    __device__ static std::uint32_t within(std::uint32_t bytes) {
      const std::uint32_t exceed = __vcmpgeu4(bytes, kFour * 0x01010101u);
      return (bytes & ~exceed) | (kOne * 0x01010101u & exceed);
    }
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
    return widen(raw, byte_twice(scales.words, group));
  }
  // The codes are widened where this is called, and not while the caller waits before: there are
  // no registers for that. The scale's bits go where BF16 has them, as those of E4M3 values.
  __device__ static SixteenValues widen(Raw raw, std::uint32_t scale_twice) {
    asm volatile("" : "+r"(raw.codes.x), "+r"(raw.codes.y));
    const std::uint32_t scale = multiply_bf16x2(scale_twice << 4, power_of_two(120));
    const std::uint32_t factor = multiply_bf16x2(scale, power_of_two(126));
    return {widen(raw.codes.x, factor), widen(raw.codes.y, factor)};
  }

 private:
  __device__ static constexpr std::uint32_t power_of_two(std::uint32_t exponent) {
    return twice(127u + exponent << 7);
  }

  // Eight codes, in order, times a scale, given twice as BF16 of 2^126 times it.
  __device__ static uint4 widen(std::uint32_t codes, std::uint32_t scale) {
    const std::uint32_t even_above = codes << 4;  // the upper half of byte i is code 2 i
    return {widen_two(spread<4, 0>(codes, even_above), scale),
            widen_two(spread<5, 1>(codes, even_above), scale),
            widen_two(spread<6, 2>(codes, even_above), scale),
            widen_two(spread<7, 3>(codes, even_above), scale)};
  }
  // Two codes in the upper halves of bytes.
  __device__ static std::uint32_t widen_two(std::uint32_t spread_codes, std::uint32_t scale) {
    return multiply_bf16x2(spread_codes << 2 & 0x81c081c0u, scale);
  }
};

}  // namespace tilewright::cuda::dsv4
