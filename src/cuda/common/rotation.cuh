// The rotation of pairs of values by position (RoPE). Products and sums are not fused, so that the
// CPU's bits are these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/rotary.hpp"

namespace tilewright::cuda {

__device__ __forceinline__ float rotated_first(float x1, float x2, float cos, float sin) {
  return __fsub_rn(__fmul_rn(x1, cos), __fmul_rn(x2, sin));
}

__device__ __forceinline__ float rotated_second(float x1, float x2, float cos, float sin) {
  return __fadd_rn(__fmul_rn(x2, cos), __fmul_rn(x1, sin));
}

// Neighbouring entries of a table, loaded as vectors where its rows are aligned to them.
template <int kCount, typename T>
__device__ void load_entries(const T* source, float (&entries)[kCount]) {
  constexpr std::size_t kBytes = kCount * sizeof(T);
  using Vector = std::conditional_t<kBytes % sizeof(uint4) == 0, uint4,
                                    std::conditional_t<kBytes == sizeof(uint2), uint2, T>>;
  static_assert(kBytes % sizeof(Vector) == 0);
  alignas(uint4) T elements[kCount];
  if (reinterpret_cast<std::uintptr_t>(source) % sizeof(Vector) == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kBytes / sizeof(Vector)); ++i) {
      reinterpret_cast<Vector*>(elements)[i] = reinterpret_cast<const Vector*>(source)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      elements[i] = source[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    entries[i] = static_cast<float>(elements[i]);
  }
}

// The cosines and sines of neighbouring pairs.
template <int kCount>
struct Angles {
  // T is the dtype of what is rotated, which tables may have, too.
  template <typename T>
  __device__ static Angles load(const Rotary& rotary, std::int64_t position, int pair) {
    Angles angles;
    const std::int64_t cos_offset = position * rotary.cos_stride + pair;
    const std::int64_t sin_offset = position * rotary.sin_stride + pair;
    if (rotary.dtype == DType::fp32) {
      load_entries(static_cast<const float*>(rotary.cos) + cos_offset, angles.cos);
      load_entries(static_cast<const float*>(rotary.sin) + sin_offset, angles.sin);
    } else {
      load_entries(static_cast<const T*>(rotary.cos) + cos_offset, angles.cos);
      load_entries(static_cast<const T*>(rotary.sin) + sin_offset, angles.sin);
    }
    return angles;
  }

  float cos[kCount];
  float sin[kCount];
};

}  // namespace tilewright::cuda
