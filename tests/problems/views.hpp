// Views of parts of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tilewright/tensor.hpp"

namespace tilewright::test {

// A view of `count` indices of dimension `dim` from `first` on.
template <typename View>
View narrowed(View view, int dim, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  view.data = static_cast<Byte*>(view.data) +
              first * view.stride[dim] * static_cast<std::int64_t>(size_bytes(view.dtype));
  view.shape[dim] = count;
  return view;
}

// The same with a first dimension of size 1 before the others.
template <typename View>
View batch_of_one(View view) {
  for (int i = view.rank; i > 0; --i) {
    view.shape[i] = view.shape[i - 1];
    view.stride[i] = view.stride[i - 1];
  }
  ++view.rank;
  view.shape[0] = 1;
  return view;
}

}  // namespace tilewright::test
