// E4M3 values in 16 bits. In a half of a word a byte has its sign's copies above it, so that one
// shift puts sign, exponent and mantissa where the wider type has them; a factor makes up for the
// other bias.
//
//   spread    ssss ssss seee emmm
//   BF16      s000 0eee emmm 0000   shifted by 4, times 2^120
//   FP16      s0ee eemm m000 0000   shifted by 7, times 2^8
#pragma once

#include <cstdint>
#include <cute/numeric/numeric_types.hpp>

namespace tilewright::cuda {

// Two bytes, one in each half, with the copies of their signs. They are bytes of a word or, from 4
// on, of a second one.
template <int kLow, int kHigh>
__device__ __forceinline__ std::uint32_t spread(std::uint32_t word, std::uint32_t second = 0) {
  constexpr int kSign = 8;
  constexpr int kSelector = (kSign | kHigh) << 12 | kHigh << 8 | (kSign | kLow) << 4 | kLow;
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(word), "r"(second), "n"(kSelector));
  return bytes;
}

// log2 of that factor.
template <typename Element>
inline constexpr int kE4m3Factor_log2 = cute::is_same_v<Element, cute::bfloat16_t> ? 120 : 8;

// Two values times 2^kPower.
template <typename Element, int kPower>
__device__ __forceinline__ std::uint32_t times_power_of_two(std::uint32_t values) {
  constexpr bool kIsBf16 = cute::is_same_v<Element, cute::bfloat16_t>;
  constexpr std::uint32_t kFactor = kIsBf16 ? (127 + kPower) << 7 : (15 + kPower) << 10;
  constexpr std::uint32_t kFactors = kFactor << 16 | kFactor;
  std::uint32_t product;
  if constexpr (kPower == 0) {
    product = values;
  } else if constexpr (kIsBf16) {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(values), "r"(kFactors));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(values), "r"(kFactors));
  }
  return product;
}

// The values of two bytes without the factor.
template <typename Element>
__device__ __forceinline__ std::uint32_t widen_without_factor(std::uint32_t spread_bytes) {
  constexpr bool kIsBf16 = cute::is_same_v<Element, cute::bfloat16_t>;
  return kIsBf16 ? spread_bytes << 4 & 0x87f087f0u : spread_bytes << 7 & 0xbf80bf80u;
}

// The values of two bytes, exactly. A NaN becomes 480, with its sign.
template <typename Element>
__device__ __forceinline__ std::uint32_t widen(std::uint32_t spread_bytes) {
  return times_power_of_two<Element, kE4m3Factor_log2<Element>>(
      widen_without_factor<Element>(spread_bytes));
}

// The same of Q's values in BF16, of which a NaN stays one.
__device__ __forceinline__ std::uint32_t widen_query(std::uint32_t spread_bytes) {
  // One more than a NaN's bits without its sign is the sign's.
  const std::uint32_t nans = (spread_bytes & 0x007f007fu) + 0x00010001u & 0x00800080u;
  constexpr std::uint32_t kNanBits = 0x3c00;  // that 480 lacks
  return widen<cute::bfloat16_t>(spread_bytes) | (nans >> 7) * kNanBits;
}

// Eight neighbours, of two words.
template <typename Element>
__device__ __forceinline__ uint4 widen_eight(std::uint32_t first, std::uint32_t second) {
  return {widen<Element>(spread<0, 1>(first)), widen<Element>(spread<2, 3>(first)),
          widen<Element>(spread<0, 1>(second)), widen<Element>(spread<2, 3>(second))};
}
__device__ __forceinline__ uint4 widen_eight_queries(std::uint32_t first, std::uint32_t second) {
  return {widen_query(spread<0, 1>(first)), widen_query(spread<2, 3>(first)),
          widen_query(spread<0, 1>(second)), widen_query(spread<2, 3>(second))};
}

}  // namespace tilewright::cuda
