#include "reference/host_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "common/half.hpp"

namespace tilewright::reference {
namespace {

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> stride(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i > 0; --i) {
    stride[i - 1] = stride[i] * shape[i];
  }
  return stride;
}

std::int64_t element_count(const ConstTensorView& tensor) {
  std::int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    count *= tensor.shape[i];
  }
  return count;
}

// The offset of the element with this row-major index.
std::int64_t offset_of(const ConstTensorView& tensor, std::int64_t index) {
  std::int64_t offset = 0;
  for (int i = tensor.rank; i-- > 0;) {
    offset += index % tensor.shape[i] * tensor.stride[i];
    index /= tensor.shape[i];
  }
  return offset;
}

// A broadcast dimension (stride 0) is one element seen many times: it is written once.
TensorView without_broadcasts(TensorView tensor) {
  for (int i = 0; i < tensor.rank; ++i) {
    tensor.shape[i] = tensor.stride[i] == 0 ? 1 : tensor.shape[i];
  }
  return tensor;
}

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Box-Muller on two 32-bit halves of a hash of the seed and the index.
double normal(std::uint64_t seed, std::int64_t index) {
  const std::uint64_t hash = splitmix64(splitmix64(seed) + static_cast<std::uint64_t>(index));
  const double u = (static_cast<double>(hash >> 32) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(hash & 0xffffffffu) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

bool same_special(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && a == b);
}

}  // namespace

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape)
    : HostTensor(dtype, shape, dense_strides(shape)) {}

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> stride) {
  description_.dtype = dtype;
  description_.rank = static_cast<int>(shape.size());
  std::ranges::copy(shape, description_.shape.begin());
  std::ranges::copy(stride, description_.stride.begin());
  std::int64_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    last += (shape[i] - 1) * stride[i];
  }
  storage_.resize(static_cast<std::size_t>(last + 1) * size_bytes(dtype));
}

TensorView HostTensor::view() {
  TensorView view = description_;
  view.data = storage_.data();
  return view;
}

ConstTensorView HostTensor::view() const {
  ConstTensorView view = description_;
  view.data = storage_.data();
  return view;
}

void fill_normal(const TensorView& all, std::uint64_t seed, double stddev) {
  const TensorView tensor = without_broadcasts(all);
  const std::int64_t count = element_count(tensor);
#pragma omp parallel for
  for (std::int64_t i = 0; i < count; ++i) {
    store(tensor, offset_of(tensor, i), stddev * normal(seed, i));
  }
}

void fill_constant(const TensorView& all, double value) {
  const TensorView tensor = without_broadcasts(all);
  const std::int64_t count = element_count(tensor);
#pragma omp parallel for
  for (std::int64_t i = 0; i < count; ++i) {
    store(tensor, offset_of(tensor, i), value);
  }
}

double load(const ConstTensorView& tensor, std::int64_t offset) {
  if (size_bytes(tensor.dtype) == 1) {
    return static_cast<const std::uint8_t*>(tensor.data)[offset];
  }
  if (tensor.dtype == DType::fp32) {
    return static_cast<const float*>(tensor.data)[offset];
  }
  if (tensor.dtype == DType::int32) {
    return static_cast<const std::int32_t*>(tensor.data)[offset];
  }
  if (tensor.dtype == DType::int64) {
    return static_cast<double>(static_cast<const std::int64_t*>(tensor.data)[offset]);
  }
  const std::uint16_t bits = static_cast<const std::uint16_t*>(tensor.data)[offset];
  return tensor.dtype == DType::fp16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

void store(const TensorView& tensor, std::int64_t offset, double value) {
  if (size_bytes(tensor.dtype) == 1) {
    static_cast<std::uint8_t*>(tensor.data)[offset] = static_cast<std::uint8_t>(value);
    return;
  }
  if (tensor.dtype == DType::int32) {
    static_cast<std::int32_t*>(tensor.data)[offset] = static_cast<std::int32_t>(value);
    return;
  }
  if (tensor.dtype == DType::int64) {
    static_cast<std::int64_t*>(tensor.data)[offset] = static_cast<std::int64_t>(value);
    return;
  }
  const auto single = static_cast<float>(value);
  if (tensor.dtype == DType::fp32) {
    static_cast<float*>(tensor.data)[offset] = single;
    return;
  }
  static_cast<std::uint16_t*>(tensor.data)[offset] =
      tensor.dtype == DType::fp16 ? float_to_fp16(single) : float_to_bf16(single);
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

bool gaps_hold(const HostTensor& tensor, std::byte filler) {
  HostTensor elements = tensor;  // 0 in the elements, 1 in the gaps
  std::memset(elements.data(), 1, elements.bytes());
  fill_constant(elements.view(), 0.0);
  for (std::size_t i = 0; i < elements.bytes(); ++i) {
    if (elements.data()[i] == std::byte{1} && tensor.data()[i] != filler) {
      return false;
    }
  }
  return true;
}

ErrorNorms compare(const ConstTensorView& actual, const std::vector<double>& expected) {
  ErrorNorms norms;
  double error_squares = 0;
  double expected_squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = load(actual, offset_of(actual, static_cast<std::int64_t>(i)));
    const double e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) {
      norms.same_specials = norms.same_specials && same_special(a, e);
      continue;
    }
    norms.max_abs = std::max(norms.max_abs, std::abs(a - e));
    error_squares += (a - e) * (a - e);
    expected_squares += e * e;
  }
  norms.rel_fro = error_squares == 0 ? 0 : std::sqrt(error_squares / expected_squares);
  return norms;
}

double rounding_error(DType dtype, const std::vector<double>& expected) {
  HostTensor rounded(dtype, {static_cast<std::int64_t>(expected.size())});
  for (std::size_t i = 0; i < expected.size(); ++i) {
    store(rounded.view(), static_cast<std::int64_t>(i), expected[i]);
  }
  return compare(rounded.view(), expected).rel_fro;
}

}  // namespace tilewright::reference
