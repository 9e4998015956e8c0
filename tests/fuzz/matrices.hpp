// What the operations on matrices share: the contract's rules for matrices, scales and packed
// weights, which may have a batch in front, and values for them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "fuzz/contract.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::fuzz {

struct Sizes {
  std::int64_t batch = kAny;
  std::int64_t rows = kAny;
  std::int64_t columns = kAny;
};

// Of a tensor of rank 2 or 3.
Sizes sizes_of(const ConstTensorView& matrix);

// (M up to a multiple of 128, J up to one of 4).
std::array<std::int64_t, 2> padded_scale_shape(std::int64_t rows, std::int64_t blocks);

// Tiles of 64 rows; bytes of a row of tiles.
std::array<std::int64_t, 2> packed_shape(std::int64_t rows, std::int64_t columns);

// Each returns the sizes of the matrix, all open where its rank is wrong.
Sizes judge_matrix(Contract& contract, const Argument& matrix, bool is_batched,
                   const Sizes& expected, Strides strides = Strides::rows);

// The scales of a matrix of those sizes, which has blocks of that many columns.
void judge_scales(Contract& contract, const Argument& scales, bool is_batched, ScaleLayout layout,
                  const Sizes& of, std::int64_t block);

// The packed weight of a matrix of those sizes.
void judge_packed(Contract& contract, const Argument& packed, bool is_batched, const Sizes& of);

// A matrix's values in float64, dense.
std::vector<double> dense_values(const ConstTensorView& matrix);

// Numbers from 0.5 to 2.
void fill_positive(const std::optional<ConstTensorView>& tensor);

// Packs codes and linear scales. If the whole batch shares a packed weight, its codes and scales
// are made the same, too.
void pack(reference::HostTensor& codes, reference::HostTensor& scales, const TensorView& packed);

// Whether packed weights of a batch lie across each other, so that none can be what was packed.
bool lie_across(const ConstTensorView& packed);

}  // namespace tilewright::fuzz
