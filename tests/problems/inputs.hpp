// Tensors that the problems of several operations have.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "reference/host_tensor.hpp"

namespace tilewright::test {

// The tensor with every byte kUnwritten.
reference::HostTensor unwritten(reference::HostTensor tensor);

// A vector of int32 or int64.
reference::HostTensor integers(DType dtype, const std::vector<std::int64_t>& values);

// The numbers below `count`, in any order.
std::vector<std::int64_t> shuffled(std::int64_t count, std::mt19937_64& random);

// Puts zeros, infinities, NaN and extremes into some rows, gaps included.
void fill_specials(reference::HostTensor& tensor, std::mt19937_64& random);

}  // namespace tilewright::test
