// What the models of operations on rows share: sizes, copies that the references write into, and
// their comparison.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/contract.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::fuzz {

// A tensor's sizes; all of them open where its rank is another.
template <std::size_t kRank>
std::array<std::int64_t, kRank> open_sizes(const TensorView& t) {
  std::array<std::int64_t, kRank> sizes;
  for (std::size_t i = 0; i < kRank; ++i) {
    sizes[i] = t.rank == static_cast<int>(kRank) ? known(t.shape[i]) : kAny;
  }
  return sizes;
}

// The elements of a tensor of int32 or int64, and new ones for it, again from the first if there
// are too few.
std::vector<std::int64_t> integers_of(const ConstTensorView& tensor);
void store_integers(const TensorView& tensor, const std::vector<std::int64_t>& values);

// A dense tensor with the same elements, bit for bit.
reference::HostTensor dense_copy(const ConstTensorView& tensor);

// Ends the program with the message if an element has other bits than the dense tensor's.
void check_same_bits(const ConstTensorView& actual, const reference::HostTensor& expected,
                     const char* message);

// The tables of a rotation: (positions, half of the rotated dims), of heads of `head_dim` elements
// of `dtype`.
void judge_rotary_tables(Contract& contract, const Argument& cos, const Argument& sin,
                         std::int64_t head_dim, DType dtype);

}  // namespace tilewright::fuzz
