// Rows that are rotated and quantised on the CPU, in the arithmetic that the GPU has, too. A file
// that includes this one is compiled without fusing products and sums (src/CMakeLists.txt).
#pragma once

#include <cfloat>
#include <cstdint>

#include "common/block_scale.hpp"
#include "common/rotary.hpp"
#include "cpu/element.hpp"

namespace tilewright::cpu {

// The elements of a row of one head, rotated or not.
template <typename T>
class SourceRow {
 public:
  // `rotary_dims` of them are rotated, as at `position`.
  SourceRow(const T* x, const Rotary& rotary, int rotary_dims, std::int64_t position)
      : x_(x), rotary_(rotary), rotary_dims_(rotary_dims), position_(position) {}

  const T& source(int dim) const { return x_[dim]; }

  bool is_rotated(int dim) const { return dim < rotary_dims_; }

  float value(int dim) const {
    if (!is_rotated(dim)) {
      return to_float(x_[dim]);
    }
    const int half = rotary_dims_ / 2;
    const bool is_second = rotary_.is_interleaved ? dim % 2 != 0 : dim >= half;
    const int step = rotary_.is_interleaved ? 1 : half;
    const int first = is_second ? dim - step : dim;
    const int pair = rotary_.is_interleaved ? dim / 2 : first;
    const float x1 = to_float(x_[first]);
    const float x2 = to_float(x_[first + step]);
    const float cos = factor(rotary_.cos, rotary_.cos_stride, pair);
    const float sin = factor(rotary_.sin, rotary_.sin_stride, pair);
    return is_second ? x2 * cos + x1 * sin : x1 * cos - x2 * sin;
  }

 private:
  float factor(const void* table, std::int64_t stride, int pair) const {
    const std::int64_t offset = position_ * stride + pair;
    return rotary_.dtype == DType::fp32 ? static_cast<const float*>(table)[offset]
                                        : to_float(static_cast<const T*>(table)[offset]);
  }

  const T* x_;
  const Rotary& rotary_;
  int rotary_dims_;
  std::int64_t position_;
};

// The larger of amax and the magnitude of a value, if that is finite.
inline float larger_finite(float amax, float value) {
  const float magnitude = value < 0.0f ? -value : value;
  return magnitude > amax && magnitude <= FLT_MAX ? magnitude : amax;
}

// A NaN loses its sign.
inline std::uint8_t e4m3_of(float value) {
  return value != value ? static_cast<std::uint8_t>(kE4m3NaN) : float_to_e4m3(value);
}

}  // namespace tilewright::cpu
