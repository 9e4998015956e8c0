// A rotation by position (RoPE), as kernels receive it.
#pragma once

#include <cstdint>

#include "tilewright/tensor.hpp"

namespace tilewright {

// The tables of a rotation.
struct Rotary {
  const void* cos = nullptr;
  const void* sin = nullptr;
  std::int64_t cos_stride = 0;  // of positions
  std::int64_t sin_stride = 0;
  DType dtype = DType::fp32;
  int dims = 0;  // R; 0: nothing is rotated
  bool is_interleaved = false;
  bool is_inverse = false;  // by the conjugate: angles count as negative
};

}  // namespace tilewright
