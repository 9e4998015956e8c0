// Checks of matrices ([batch,] rows, columns) and their block scales, beside those of
// tensor_checks.hpp. The first matrix of a call says whether the others have a batch, how large it
// is, and which device they are on: it is `like`, by the name `like_name`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ops/tensor_checks.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

inline constexpr std::array kBatchedDims = {"batch", "rows", "columns"};
inline constexpr DimNames kMatrixDims = DimNames(kBatchedDims).last<2>();

// A call's first matrix: either rank.
void check_first_matrix(const char* argument, const ConstTensorView& matrix);

// The rank, the batch, the device and the contiguous dimension of a matrix.
void check_matrix(const char* argument, const ConstTensorView& matrix, const ConstTensorView& like,
                  const char* like_name);

// `why` ends the message.
void check_columns_are_multiple(const char* argument, std::int64_t columns, int of,
                                const char* why);

// The scales of `rows` rows of `blocks` blocks; their dtype aside.
void check_block_scales(const char* argument, const ConstTensorView& scales, ScaleLayout layout,
                        std::int64_t rows, std::int64_t blocks, const ConstTensorView& like,
                        const char* like_name);

// The sense of a global scale, where there is one.
void check_global_scale_kind(const char* argument, std::optional<GlobalScale> kind);

// A weight (rows, columns) as prepack_nvfp4_weight() packs it.
void check_packed_weight(const char* argument, const ConstTensorView& packed, std::int64_t rows,
                         std::int64_t columns, const ConstTensorView& like, const char* like_name);

}  // namespace tilewright
