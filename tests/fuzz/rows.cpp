#include "fuzz/rows.hpp"

#include <cstring>
#include <string>

#include "fuzz/check.hpp"

namespace tilewright::fuzz {

std::vector<std::int64_t> integers_of(const ConstTensorView& tensor) {
  std::vector<std::int64_t> values;
  for (const std::int64_t offset : byte_offsets(tensor)) {
    const auto* const from = static_cast<const std::byte*>(tensor.data) + offset;
    if (tensor.dtype == DType::int64) {
      std::memcpy(&values.emplace_back(), from, sizeof(std::int64_t));
    } else {
      std::int32_t value;
      std::memcpy(&value, from, sizeof(value));
      values.push_back(value);
    }
  }
  return values;
}

void store_integers(const TensorView& tensor, const std::vector<std::int64_t>& values) {
  std::size_t i = 0;
  for (const std::int64_t offset : byte_offsets(tensor)) {
    auto* const to = static_cast<std::byte*>(tensor.data) + offset;
    const std::int64_t value = values[i++ % values.size()];
    if (tensor.dtype == DType::int64) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(to, &narrow, sizeof(narrow));
    }
  }
}

reference::HostTensor dense_copy(const ConstTensorView& tensor) {
  const auto rank = static_cast<std::ptrdiff_t>(tensor.rank);
  reference::HostTensor copy(tensor.dtype, {tensor.shape.begin(), tensor.shape.begin() + rank});
  std::byte* to = copy.data();
  for (const std::int64_t offset : byte_offsets(tensor)) {
    std::memcpy(to, static_cast<const std::byte*>(tensor.data) + offset, size_bytes(tensor.dtype));
    to += size_bytes(tensor.dtype);
  }
  return copy;
}

void check_same_bits(const ConstTensorView& actual, const reference::HostTensor& expected,
                     const char* message) {
  const std::size_t bytes = size_bytes(actual.dtype);
  std::size_t i = 0;
  for (const std::int64_t offset : byte_offsets(actual)) {
    check(std::memcmp(static_cast<const std::byte*>(actual.data) + offset,
                      expected.data() + i * bytes, bytes) == 0,
          std::string(message) + " has other bits at element " + std::to_string(i));
    ++i;
  }
}

void judge_rotary_tables(Contract& contract, const Argument& cos, const Argument& sin,
                         std::int64_t head_dim, DType dtype) {
  contract.has_dtype(cos, {DType::fp32, dtype});
  contract.has_dtype(sin, {cos.tensor.dtype});
  const auto [positions, pairs] = open_sizes<2>(cos.tensor);
  if (contract.has_shape(cos, {kAny, kAny})) {
    contract.has_strides(cos, Strides::rows);
  }
  if (contract.has_shape(sin, {positions, pairs})) {
    contract.has_strides(sin, Strides::rows);
  }
  if (pairs != kAny && head_dim != kAny && 2 * pairs > head_dim) {
    contract.refuse(cos.name);
  }
}

}  // namespace tilewright::fuzz
