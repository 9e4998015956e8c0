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

// The values of two bytes times 2^-120, in BF16.
__device__ __forceinline__ std::uint32_t bf16_bits(std::uint32_t spread_bytes) {
  return spread_bytes << 4 & 0x87f087f0u;
}

// The values of two bytes, exactly. A NaN becomes 480, with its sign.
template <typename Element>
__device__ __forceinline__ std::uint32_t widen(std::uint32_t spread_bytes) {
  std::uint32_t value;
  if constexpr (cute::is_same_v<Element, cute::bfloat16_t>) {
    const std::uint32_t bits = bf16_bits(spread_bytes);
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(value) : "r"(bits), "r"(0x7b807b80u));
  } else {
    const std::uint32_t bits = spread_bytes << 7 & 0xbf80bf80u;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(value) : "r"(bits), "r"(0x5c005c00u));
  }
  return value;
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
