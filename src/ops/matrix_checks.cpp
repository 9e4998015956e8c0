#include "ops/matrix_checks.hpp"

#include <string>

#include "ops/matrix_views.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright {
namespace {

// Checks that each matrix of a batch is contiguous as a whole. `what` says what it is.
void check_rows_are_contiguous(const char* argument, const ConstTensorView& matrix,
                               const char* what) {
  const std::int64_t row_stride = matrix.stride[matrix.rank - 2];
  if (rows_of(matrix) > 1 && row_stride != columns_of(matrix)) {
    fail(argument, "has a row stride of " + std::to_string(row_stride) + ", " + what +
                       " must be contiguous (stride " + std::to_string(columns_of(matrix)) + ")");
  }
}

}  // namespace

void check_first_matrix(const char* argument, const ConstTensorView& matrix) {
  if (matrix.rank == 2) {
    check_tensor(argument, matrix, kMatrixDims);
  } else {
    check_tensor(argument, matrix, kBatchedDims, {", or 2 without the batch"});
  }
  check_last_dim_is_contiguous(argument, matrix, "must be");
}

void check_matrix(const char* argument, const ConstTensorView& matrix, const ConstTensorView& like,
                  const char* like_name) {
  check_tensor(argument, matrix, is_batched(like) ? DimNames(kBatchedDims) : kMatrixDims,
               {", as ", like_name});
  if (is_batched(like)) {
    check_same(argument, "batch", matrix.shape[0],
               {like_name, std::string_view(like_name).ends_with('s') ? "'" : "'s"}, like.shape[0]);
  }
  check_device(argument, matrix, like.device, like_name);
  check_last_dim_is_contiguous(argument, matrix, "must be");
}

void check_columns_are_multiple(const char* argument, std::int64_t columns, int of,
                                const char* why) {
  if (columns % of != 0) {
    fail(argument, "has " + std::to_string(columns) + " columns, must have a multiple of " +
                       std::to_string(of) + why);
  }
}

void check_block_scales(const char* argument, const ConstTensorView& scales, ScaleLayout layout,
                        std::int64_t rows, std::int64_t blocks, const ConstTensorView& like,
                        const char* like_name) {
  check_matrix(argument, scales, like, like_name);
  if (layout == ScaleLayout::linear) {
    check_same(argument, "rows", rows_of(scales), "the matrix's", rows);
    check_same(argument, "columns", columns_of(scales), "the matrix's blocks in a row,", blocks);
    return;
  }
  const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
  check_same(argument, "rows", rows_of(scales), "the matrix's up to a multiple of 128,",
             padded_rows);
  check_same(argument, "columns", columns_of(scales),
             "the matrix's blocks in a row up to a multiple of 4,", padded_blocks);
  check_rows_are_contiguous(argument, scales, "swizzled scales");
}

void check_global_scale_kind(const char* argument, std::optional<GlobalScale> kind) {
  if (!kind) {
    fail(argument, "is absent, must be encode or decode: the sense of the global scale");
  }
}

void check_packed_weight(const char* argument, const ConstTensorView& packed, std::int64_t rows,
                         std::int64_t columns, const ConstTensorView& like, const char* like_name) {
  check_matrix(argument, packed, like, like_name);
  check_dtype(argument, packed, DType::u8);
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(rows, columns);
  check_same(argument, "rows", rows_of(packed),
             {"the tiles of 64 of N ", std::to_string(rows), ","}, row_tiles);
  check_same(argument, "columns", columns_of(packed),
             {"the bytes of tiles that K ", std::to_string(columns), " takes,"}, row_bytes);
  check_rows_are_contiguous(argument, packed, "a packed weight");
}

}  // namespace tilewright
