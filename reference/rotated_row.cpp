#include "reference/rotated_row.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::reference {

std::vector<double> rotated(const RotaryTables& tables, const ConstTensorView& x,
                            std::int64_t offset, std::int64_t position) {
  std::vector<double> values;
  for (std::int64_t d = 0; d < x.shape[x.rank - 1]; ++d) {
    values.push_back(load(x, offset + d));
  }
  for (std::int64_t pair = 0; pair < tables.dims / 2; ++pair) {
    const auto first = static_cast<std::size_t>(tables.is_interleaved ? 2 * pair : pair);
    const auto second =
        static_cast<std::size_t>(tables.is_interleaved ? 2 * pair + 1 : pair + tables.dims / 2);
    const double cos = load(*tables.cos, position * tables.cos->stride[0] + pair);
    const double sin = load(*tables.sin, position * tables.sin->stride[0] + pair);
    const double x1 = values[first];
    const double x2 = values[second];
    values[first] = fp32(fp32(x1 * cos) - fp32(x2 * sin));
    values[second] = fp32(fp32(x2 * cos) + fp32(x1 * sin));
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
