// Conversions of floating-point tensors' elements to and from float.
#pragma once

#include <cstdint>
#include <limits>

#include "common/block_scale.hpp"
#include "common/half.hpp"
#include "cpu/vector.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright::cpu {

struct Fp16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};
struct E4m3 {
  std::uint8_t bits;
};

TILEWRIGHT_INLINE float to_float(float value) { return value; }
TILEWRIGHT_INLINE float to_float(Fp16 value) { return fp16_to_float(value.bits); }
TILEWRIGHT_INLINE float to_float(Bf16 value) { return bf16_to_float(value.bits); }
TILEWRIGHT_INLINE float to_float(E4m3 value) { return e4m3_to_float(value.bits); }
TILEWRIGHT_INLINE void from_float(float value, float& out) { out = value; }
TILEWRIGHT_INLINE void from_float(float value, Fp16& out) { out.bits = float_to_fp16(value); }
TILEWRIGHT_INLINE void from_float(float value, Bf16& out) { out.bits = float_to_bf16(value); }

// The same with one NaN for all: 0x7fff in sixteen bits, as the GPU's conversions have it, or
// 0x7fc00000.
TILEWRIGHT_INLINE void from_float_as_gpu(float value, float& out) {
  out = value != value ? std::numeric_limits<float>::quiet_NaN() : value;
}
template <typename Half>
TILEWRIGHT_INLINE void from_float_as_gpu(float value, Half& out) {
  if (value != value) {
    out.bits = 0x7fff;
  } else {
    from_float(value, out);
  }
}

// The same of E4M3: a NaN has no sign.
TILEWRIGHT_INLINE std::uint8_t to_e4m3_as_gpu(float value) {
  return value != value ? static_cast<std::uint8_t>(kE4m3NaN) : float_to_e4m3(value);
}

// The larger of amax and the magnitude of a value, if that is finite.
TILEWRIGHT_INLINE float larger_finite(float amax, float value) {
  const float magnitude = value < 0.0f ? -value : value;
  return magnitude > amax && magnitude <= std::numeric_limits<float>::max() ? magnitude : amax;
}

// Calls f with a null pointer of the element type of `dtype`.
template <typename F>
void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp32:
      return f(static_cast<float*>(nullptr));
    case DType::fp16:
      return f(static_cast<Fp16*>(nullptr));
    case DType::bf16:
      return f(static_cast<Bf16*>(nullptr));
    default:  // refused by the checks
      return;
  }
}

}  // namespace tilewright::cpu
