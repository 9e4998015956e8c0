// Checks of lengths by their values, which operations on packed sequences share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/cuda_backend.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// The elements of a tensor of rank 1 or 2 whose last dimension is contiguous, row after row. If
// they are on a GPU, it copies them from there, behind the stream's work.
template <typename T>
std::vector<T> values_of(const ConstTensorView& t, Stream stream) {
  const std::int64_t rows = t.rank == 2 ? t.shape[0] : 1;
  const auto columns = static_cast<std::size_t>(t.shape[t.rank - 1]);
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(rows) * columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* const data = static_cast<const T*>(t.data) + (rows > 1 ? row * t.stride[0] : 0);
    if (t.device.kind == DeviceKind::cpu) {
      values.insert(values.end(), data, data + columns);
      continue;
    }
    values.resize(values.size() + columns);
    cuda::copy_to_host(values.data() + values.size() - columns, data, columns * sizeof(T),
                       t.device.index, stream);
  }
  return values;
}

// The values must start at 0 and ascend, up to `rows` at most, which are those of `rows_of`.
void check_cu_seqlens(const char* argument, const std::vector<int>& values, std::int64_t rows,
                      const char* rows_of);

}  // namespace tilewright
