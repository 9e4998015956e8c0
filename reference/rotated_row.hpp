// Rows of one head, rotated by positions, and their E4M3 form, for the oracles that quantise.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tilewright/tensor.hpp"

namespace tilewright::reference {

inline double fp32(double value) { return static_cast<float>(value); }

struct RotaryTables {
  const std::optional<ConstTensorView>& cos;
  const std::optional<ConstTensorView>& sin;
  std::int64_t dims;  // 0: nothing is rotated
  bool is_interleaved;
};

// The values in FP32 of x's row and head at `offset`, of which the first dims are rotated as at
// `position`.
std::vector<double> rotated(const RotaryTables& tables, const ConstTensorView& x,
                            std::int64_t offset, std::int64_t position);

// The largest magnitude that is finite; 0 if there is none.
double largest_finite(const std::vector<double>& values);

double e4m3_descale(double amax);

// NaN loses its sign.
int e4m3_byte(double value);

}  // namespace tilewright::reference
