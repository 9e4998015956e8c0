// Rotation by position (RoPE) in the test oracles: in float64, rounded to FP32 where the contracts
// round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tilewright/tensor.hpp"

namespace tilewright::reference {

struct Rotation {
  ConstTensorView cos;
  ConstTensorView sin;
  bool is_interleaved = false;
  bool is_inverse = false;
};

// `dims` values from an offset on, in elements.
std::vector<double> row_values(const ConstTensorView& x, std::int64_t offset, std::int64_t dims);

// Rotates as many values as there are in all pairs of the tables.
void rotate(std::span<double> values, const Rotation& rotation, std::int64_t position);

// Stores values of the dtype of x. Of [first, first + dims) they are rounded; all others are copied
// from x.
void store_rotated(const TensorView& to, std::int64_t offset, const std::vector<double>& values,
                   std::int64_t first, std::int64_t dims, const ConstTensorView& x,
                   std::int64_t x_offset);

// Rounds and stores; any NaN becomes one, 0x7fff in sixteen bits, as the GPU's conversions have it.
void store_as_gpu(const TensorView& to, std::int64_t offset, double value);

}  // namespace tilewright::reference
