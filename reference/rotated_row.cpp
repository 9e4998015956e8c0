#include "reference/rotated_row.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <span>

#include "reference/nvfp4.hpp"
#include "reference/rotation.hpp"

namespace tilewright::reference {

std::vector<double> rotated(const RotaryTables& tables, const ConstTensorView& x,
                            std::int64_t offset, std::int64_t position) {
  std::vector<double> values = row_values(x, offset, x.shape[x.rank - 1]);
  if (tables.dims > 0) {
    rotate(std::span(values).first(static_cast<std::size_t>(tables.dims)),
           {*tables.cos, *tables.sin, tables.is_interleaved}, position);
  }
  return values;
}

double largest_finite(const std::vector<double>& values) {
  double amax = 0;
  for (const double value : values) {
    amax = std::isfinite(value) ? std::max(amax, std::abs(value)) : amax;
  }
  return amax;
}

double e4m3_descale(double amax) {
  constexpr double kE4m3Max = 448;
  return amax == 0 ? 1 : std::max(fp32(amax / kE4m3Max), static_cast<double>(FLT_MIN));
}

int e4m3_byte(double value) {
  constexpr int kNaN = 0x7f;
  return std::isnan(value) ? kNaN : round_to_e4m3(value);
}

}  // namespace tilewright::reference
