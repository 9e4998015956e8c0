// A checked call of rope(), as its kernels receive it.
#pragma once

#include <cstdint>

#include "common/rotary.hpp"
#include "common/strides.hpp"
#include "tilewright/rope.hpp"

namespace tilewright {

struct RopeParams {
  const void* x = nullptr;
  void* out = nullptr;
  DType dtype = DType::bf16;  // of both
  int rows = 0;
  int heads = 0;
  int head_dim = 0;
  OuterStrides x_stride{};
  OuterStrides out_stride{};

  Rotary rotary;
  int first_rotated = 0;  // dim
  const std::int64_t* positions = nullptr;
  int max_positions = 0;

  bool is_in_place() const { return x == out; }

  // Is a row at a position of the tables?
  constexpr bool has_position(int row) const {
    return positions[row] >= 0 && positions[row] < max_positions;
  }
};

}  // namespace tilewright
