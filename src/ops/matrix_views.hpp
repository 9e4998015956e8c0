// Matrices ([batch,] rows, columns) of checked calls: their sizes and strides.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Strides in elements; 0 if a dimension is absent or never stepped over.
struct MatrixStrides {
  std::int64_t batch = 0;
  std::int64_t row = 0;
};

inline std::int64_t rows_of(const ConstTensorView& matrix) { return matrix.shape[matrix.rank - 2]; }
inline std::int64_t columns_of(const ConstTensorView& matrix) {
  return matrix.shape[matrix.rank - 1];
}
inline bool is_batched(const ConstTensorView& matrix) { return matrix.rank == 3; }
inline std::int64_t batch_of(const ConstTensorView& matrix) {
  return is_batched(matrix) ? matrix.shape[0] : 1;
}

// A dimension's stride; 0 if it is never used, whatever the caller put there.
inline std::int64_t stride_of(const ConstTensorView& t, int dimension) {
  return t.shape[dimension] > 1 ? t.stride[dimension] : 0;
}

inline MatrixStrides matrix_strides(const ConstTensorView& t) {
  return {.batch = is_batched(t) ? stride_of(t, 0) : 0, .row = stride_of(t, t.rank - 2)};
}

// The block scales of a batch's first matrix. Byte is const for a ConstTensorView.
template <typename Byte, typename View>
Scales<Byte> block_scales(const View& t, ScaleLayout layout) {
  return {.data = static_cast<Byte*>(t.data),
          .layout = layout,
          .row_stride = matrix_strides(t).row,
          .block_tiles = static_cast<int>(columns_of(t) / kScaleTileBlocks)};
}

}  // namespace tilewright
