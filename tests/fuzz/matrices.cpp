#include "fuzz/matrices.hpp"

#include <cstddef>
#include <cstdlib>
#include <type_traits>

#include "fuzz/call.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kTile_bytes = 2304;

constexpr std::int64_t kLargest = std::int64_t{1} << 32;  // of what two sizes give together

// The number up to a multiple; open where it is, or is none of a right call.
std::int64_t up_to_multiple(std::int64_t value, std::int64_t of) {
  return value < 0 || value > kLargest ? kAny : (value + of - 1) / of * of;
}

std::int64_t quotient(std::int64_t value, std::int64_t by) {
  return value == kAny ? kAny : value / by;
}

// One matrix of a batch of bytes.
template <typename View>
View nth(View matrices, std::int64_t i) {
  if (matrices.rank == 2) {
    return matrices;
  }
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  matrices.data = static_cast<Byte*>(matrices.data) + i * matrices.stride[0];
  matrices.rank = 2;
  matrices.shape = {matrices.shape[1], matrices.shape[2]};
  matrices.stride = {matrices.stride[1], matrices.stride[2]};
  return matrices;
}

// Makes all matrices of a batch the first one.
void repeat_first(reference::HostTensor& matrices) {
  const std::size_t bytes = matrices.bytes() / static_cast<std::size_t>(matrices.view().shape[0]);
  for (std::size_t i = bytes; i < matrices.bytes(); ++i) {
    matrices.data()[i] = matrices.data()[i - bytes];
  }
}

}  // namespace

Sizes sizes_of(const ConstTensorView& matrix) {
  const auto from_last = [&](int i) { return matrix.shape[matrix.rank - 1 - i]; };
  return {.batch = matrix.rank == 3 ? matrix.shape[0] : 1,
          .rows = from_last(1),
          .columns = from_last(0)};
}

std::array<std::int64_t, 2> padded_scale_shape(std::int64_t rows, std::int64_t blocks) {
  return {up_to_multiple(rows, 128), up_to_multiple(blocks, 4)};
}

std::array<std::int64_t, 2> packed_shape(std::int64_t rows, std::int64_t columns) {
  const std::int64_t tiles = quotient(up_to_multiple(columns, 128), 64);
  return {quotient(up_to_multiple(rows, 64), 64), tiles == kAny ? kAny : tiles * kTile_bytes};
}

Sizes judge_matrix(Contract& contract, const Argument& matrix, bool is_batched,
                   const Sizes& expected, Strides strides) {
  const bool has_rank =
      is_batched ? contract.has_shape(matrix, {expected.batch, expected.rows, expected.columns})
                 : contract.has_shape(matrix, {expected.rows, expected.columns});
  if (!has_rank) {
    return {};
  }
  contract.has_strides(matrix, strides);
  const Sizes sizes = sizes_of(matrix.tensor);
  return {.batch = known(sizes.batch), .rows = known(sizes.rows), .columns = known(sizes.columns)};
}

void judge_scales(Contract& contract, const Argument& scales, bool is_batched, ScaleLayout layout,
                  const Sizes& of, std::int64_t block) {
  const std::int64_t blocks = quotient(of.columns, block);
  const bool is_linear = layout == ScaleLayout::linear;
  const auto [rows, columns] =
      is_linear ? std::array{of.rows, blocks} : padded_scale_shape(of.rows, blocks);
  judge_matrix(contract, scales, is_batched, {.batch = of.batch, .rows = rows, .columns = columns},
               is_linear ? Strides::rows : Strides::contiguous);
}

void judge_packed(Contract& contract, const Argument& packed, bool is_batched, const Sizes& of) {
  const auto [row_tiles, row_bytes] = packed_shape(of.rows, of.columns);
  contract.has_dtype(packed, {DType::u8});
  judge_matrix(contract, packed, is_batched,
               {.batch = of.batch, .rows = row_tiles, .columns = row_bytes}, Strides::contiguous);
}

std::vector<double> dense_values(const ConstTensorView& matrix) {
  std::vector<double> values;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(matrix.dtype));
  for (const std::int64_t offset : byte_offsets(matrix)) {
    values.push_back(reference::load(matrix, offset / element_bytes));
  }
  return values;
}

void fill_positive(const std::optional<ConstTensorView>& tensor) {
  if (tensor) {
    double value = 0.5;
    for (const std::int64_t offset : byte_offsets(*tensor)) {
      const TensorView writable{const_cast<void*>(tensor->data), tensor->dtype, tensor->device};
      reference::store(writable, offset / 4, value);
      value = value < 2 ? value + 0.375 : 0.5;
    }
  }
}

void pack(reference::HostTensor& codes, reference::HostTensor& scales, const TensorView& packed) {
  if (packed.rank == 3 && packed.stride[0] == 0) {
    repeat_first(codes);
    repeat_first(scales);
  }
  for (std::int64_t i = 0; i < sizes_of(packed).batch; ++i) {
    prepack_nvfp4_weight(
        {.codes = nth(codes.view(), i), .scales = nth(scales.view(), i), .packed = nth(packed, i)});
  }
}

bool lie_across(const ConstTensorView& packed) {
  return packed.rank == 3 && packed.shape[0] > 1 && packed.stride[0] != 0 &&
         std::abs(packed.stride[0]) < packed.shape[1] * packed.shape[2];
}

}  // namespace tilewright::fuzz
