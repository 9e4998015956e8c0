// Sixteen neighbouring values of a row, which a thread holds: their largest magnitude, and their
// codes in E2M1. Rows are aligned to 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/nvfp4_recipe.hpp"

namespace tilewright::cuda {

// Sixteen neighbouring values as they lie in memory.
template <typename T>
struct ValueBlock {
  static constexpr int kVectors = sizeof(T);  // 16 values of sizeof(T) bytes, 16 bytes a vector
  static constexpr int kWords = 4 * kVectors;

  __device__ std::uint32_t word(int i) const {
    const uint4& v = vectors[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
  }

  uint4 vectors[kVectors];
};

template <typename T>
__device__ __forceinline__ ValueBlock<T> load_values(const T* values) {
  const auto* const source = reinterpret_cast<const uint4*>(values);
  ValueBlock<T> block;
#pragma unroll
  for (int i = 0; i < ValueBlock<T>::kVectors; ++i) {
    block.vectors[i] = source[i];
  }
  return block;
}

// Value i of the block.
__device__ __forceinline__ float value(const ValueBlock<float>& block, int i) {
  return __uint_as_float(block.word(i));
}
__device__ __forceinline__ float value(const ValueBlock<__nv_bfloat16>& block, int i) {
  const std::uint32_t word = block.word(i / 2);
  return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}
__device__ __forceinline__ float value(const ValueBlock<__half>& block, int i) {
  const std::uint32_t word = block.word(i / 2);
  const __half2 pair = reinterpret_cast<const __half2&>(word);
  return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
}

// The bits of the largest magnitude in FP32. As integers, numbers < infinity < NaN.
__device__ __forceinline__ std::uint32_t amax_bits(const ValueBlock<float>& block) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < nvfp4::kBlock; ++i) {
    largest = max(largest, block.word(i) & nvfp4::kMagnitude);
  }
  return largest;
}
template <typename Half, typename Half2>
__device__ __forceinline__ std::uint32_t amax_bits_of_halves(const ValueBlock<Half>& block) {
  const auto magnitudes = [&](int i) {
    const std::uint32_t word = block.word(i);
    return __habs2(reinterpret_cast<const Half2&>(word));
  };
  Half2 largest = magnitudes(0);
#pragma unroll
  for (int i = 1; i < ValueBlock<Half>::kWords; ++i) {
    largest = __hmax2_nan(largest, magnitudes(i));
  }
  return __float_as_uint(static_cast<float>(__hmax_nan(largest.x, largest.y))) & nvfp4::kMagnitude;
}
__device__ __forceinline__ std::uint32_t amax_bits(const ValueBlock<__nv_bfloat16>& block) {
  return amax_bits_of_halves<__nv_bfloat16, __nv_bfloat162>(block);
}
__device__ __forceinline__ std::uint32_t amax_bits(const ValueBlock<__half>& block) {
  return amax_bits_of_halves<__half, __half2>(block);
}

// The bytes with the signs of four values: every second one of eight, from `first` (+ 1 if `odd`).
// They come from x in memory, as converting a NaN to FP32 may lose its sign.
template <typename T>
__device__ __forceinline__ std::uint32_t sign_bytes(const ValueBlock<T>& block, int first,
                                                    int odd) {
  constexpr int kPerWord = 4 / sizeof(T);
  const auto word = [&](int i) { return block.word((first + 2 * i + odd) / kPerWord); };
  const std::uint32_t pick = kPerWord == 2 && odd == 0 ? 0x0051 : 0x0073;
  return __byte_perm(__byte_perm(word(0), word(1), pick), __byte_perm(word(2), word(3), pick),
                     0x5410);
}

// Eight codes in a word, the first in the lowest bits. kIsBelow7: all |value| * m are below 7.
template <bool kIsBelow7 = false, typename T>
__device__ __forceinline__ std::uint32_t eight_codes(const ValueBlock<T>& block, int first,
                                                     float m) {
  std::uint32_t magnitude[8];  // in the lowest byte
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float y = fabsf(__fmul_rn(value(block, first + i), m));
    magnitude[i] = kIsBelow7 ? e2m1_magnitude_below_7(y) : e2m1_magnitude(y);
  }
  // The lowest bytes of every second word, in one word.
  const auto low_bytes = [](const std::uint32_t* v) {
    return __byte_perm(__byte_perm(v[0], v[2], 0x0040), __byte_perm(v[4], v[6], 0x0040), 0x5410);
  };
  constexpr std::uint32_t kHighBits = 0x80808080u;
  const std::uint32_t even = low_bytes(magnitude) | (sign_bytes(block, first, 0) & kHighBits) >> 4;
  const std::uint32_t odd =
      low_bytes(magnitude + 1) << 4 | (sign_bytes(block, first, 1) & kHighBits);
  return even | odd;
}

}  // namespace tilewright::cuda
