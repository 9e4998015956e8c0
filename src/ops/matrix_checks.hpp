// Checks of matrices ([batch,] rows, columns) and their block scales, besides those of
// tensor_checks.hpp. A call's first matrix, `like` with the name `like_name`, decides whether the
// others have a batch, its size, and which device they are on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ops/tensor_checks.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

inline constexpr std::array kBatchedDims = {"batch", "rows", "columns"};
inline constexpr DimNames kMatrixDims = DimNames(kBatchedDims).last<2>();

// Checks a call's first matrix, which may have a batch or not.
void check_first_matrix(const char* argument, const ConstTensorView& matrix);

// Checks the rank, the batch, the device and the contiguous dimension of a matrix.
void check_matrix(const char* argument, const ConstTensorView& matrix, const ConstTensorView& like,
                  const char* like_name);

// `why` ends the message.
void check_columns_are_multiple(const char* argument, std::int64_t columns, int of,
                                const char* why);

// Checks the scales of `rows` rows of `blocks` blocks, except their dtype.
void check_block_scales(const char* argument, const ConstTensorView& scales, ScaleLayout layout,
                        std::int64_t rows, std::int64_t blocks, const ConstTensorView& like,
                        const char* like_name);

// Checks that the sense of a global scale is given.
void check_global_scale_kind(const char* argument, std::optional<GlobalScale> kind);

// Checks a weight (rows, columns) that prepack_nvfp4_weight() has packed.
void check_packed_weight(const char* argument, const ConstTensorView& packed, std::int64_t rows,
                         std::int64_t columns, const ConstTensorView& like, const char* like_name);

}  // namespace tilewright
