#include "reference/rotation.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "reference/host_tensor.hpp"

namespace tilewright::reference {
namespace {

double fp32(double value) { return static_cast<float>(value); }

}  // namespace

std::vector<double> row_values(const ConstTensorView& x, std::int64_t offset, std::int64_t dims) {
  std::vector<double> values;
  for (std::int64_t d = 0; d < dims; ++d) {
    values.push_back(load(x, offset + d));
  }
  return values;
}

void rotate(std::span<double> values, const Rotation& r, std::int64_t position) {
  const std::int64_t pairs = r.cos.shape[1];
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto first = static_cast<std::size_t>(r.is_interleaved ? 2 * pair : pair);
    const auto second = static_cast<std::size_t>(r.is_interleaved ? 2 * pair + 1 : pair + pairs);
    const double cos = load(r.cos, position * r.cos.stride[0] + pair);
    const double sin = (r.is_inverse ? -1 : 1) * load(r.sin, position * r.sin.stride[0] + pair);
    const double x1 = values[first];
    const double x2 = values[second];
    values[first] = fp32(fp32(x1 * cos) - fp32(x2 * sin));
    values[second] = fp32(fp32(x2 * cos) + fp32(x1 * sin));
  }
}

void store_rotated(const TensorView& to, std::int64_t offset, const std::vector<double>& values,
                   std::int64_t first, std::int64_t dims, const ConstTensorView& x,
                   std::int64_t x_offset) {
  const std::size_t bytes = size_bytes(to.dtype);
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(values.size()); ++d) {
    if (d >= first && d < first + dims) {
      store_as_gpu(to, offset + d, values[static_cast<std::size_t>(d)]);
    } else {
      std::memcpy(
          static_cast<std::byte*>(to.data) + static_cast<std::size_t>(offset + d) * bytes,
          static_cast<const std::byte*>(x.data) + static_cast<std::size_t>(x_offset + d) * bytes,
          bytes);
    }
  }
}

void store_as_gpu(const TensorView& to, std::int64_t offset, double value) {
  if (std::isnan(value) && size_bytes(to.dtype) == 2) {
    static_cast<std::uint16_t*>(to.data)[offset] = 0x7fff;
  } else {
    store(to, offset, std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
  }
}

}  // namespace tilewright::reference
