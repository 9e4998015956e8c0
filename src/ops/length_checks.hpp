// Checks of lengths by their values, which operations on packed sequences share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/cuda_backend.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// `count` elements of a tensor on `device`, from `data` on. If they are on a GPU, it copies them
// from there, behind the stream's work.
template <typename T>
std::vector<T> values_at(const T* data, std::int64_t count, Device device, Stream stream) {
  if (device.kind == DeviceKind::cpu) {
    return {data, data + count};
  }
  std::vector<T> values(static_cast<std::size_t>(count));
  cuda::copy_to_host(values.data(), data, values.size() * sizeof(T), device.index, stream);
  return values;
}

// The elements of a tensor in row-major order. Where its last dimension is not contiguous, they are
// copied one by one.
template <typename T>
std::vector<T> values_of(const ConstTensorView& t, Stream stream) {
  const auto* const data = static_cast<const T*>(t.data);
  if (t.rank == 1 && (t.shape[0] == 1 || t.stride[0] == 1)) {
    return values_at(data, t.shape[0], t.device, stream);
  }
  ConstTensorView inner = t;
  inner.rank = std::max(t.rank - 1, 1);
  std::copy(t.shape.begin() + 1, t.shape.end(), inner.shape.begin());
  std::copy(t.stride.begin() + 1, t.stride.end(), inner.stride.begin());
  if (t.rank == 1) {
    inner.shape[0] = 1;
  }
  std::vector<T> values;
  for (std::int64_t i = 0; i < t.shape[0]; ++i) {
    inner.data = data + (i > 0 ? i * t.stride[0] : 0);
    const std::vector<T> its = values_of<T>(inner, stream);
    values.insert(values.end(), its.begin(), its.end());
  }
  return values;
}

// Checks that a value is at least `least` and at most `most`, which is that of `of`.
void check_range(const char* argument, std::int64_t value, const std::string& where,
                 std::int64_t least, std::int64_t most, const char* of);

// The values must start at 0 and ascend.
void check_ascends_from_0(const char* argument, const std::vector<int>& values);

// The values must start at 0 and ascend, up to `rows` at most, which are those of `rows_of`.
void check_cu_seqlens(const char* argument, const std::vector<int>& values, std::int64_t rows,
                      const char* rows_of);

}  // namespace tilewright
