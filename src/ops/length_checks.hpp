// Checks of lengths by their values, which operations on packed sequences share.
#pragma once

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

// The elements of a tensor of rank 1 or 2 whose last dimension is contiguous, row after row.
template <typename T>
std::vector<T> values_of(const ConstTensorView& t, Stream stream) {
  const auto* const data = static_cast<const T*>(t.data);
  const std::int64_t columns = t.shape[t.rank - 1];
  if (t.rank == 1) {
    return values_at(data, columns, t.device, stream);
  }
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(t.shape[0] * columns));
  for (std::int64_t row = 0; row < t.shape[0]; ++row) {
    const std::vector<T> its =
        values_at(data + (row > 0 ? row * t.stride[0] : 0), columns, t.device, stream);
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
