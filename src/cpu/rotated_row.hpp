// A row of a head, rotated by position (RoPE), as the GPU's kernels have it, too. Who includes this
// is compiled without fusing products and sums (src/CMakeLists.txt): both products are rounded.
#pragma once

#include <cstdint>

#include "common/rotary.hpp"
#include "cpu/element.hpp"

namespace tilewright::cpu {

// The elements of a row of one head, rotated or not.
template <typename T>
class RotatedRow {
 public:
  // `rotary_dims` of them are rotated, as at `position`.
  RotatedRow(const T* x, const Rotary& rotary, int rotary_dims, std::int64_t position)
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
    const float sin_of_angle = factor(rotary_.sin, rotary_.sin_stride, pair);
    const float sin = rotary_.is_inverse ? -sin_of_angle : sin_of_angle;
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

}  // namespace tilewright::cpu
