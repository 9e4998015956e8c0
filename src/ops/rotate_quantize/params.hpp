// A checked call of rotate_quantize(), as its kernels receive it.
#pragma once

#include <cstdint>

#include "common/columns.hpp"
#include "common/descale_blocks.hpp"
#include "common/random_signs.hpp"
#include "common/rotary.hpp"
#include "common/strides.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright {

struct RotateQuantizeParams {
  const void* x = nullptr;
  OuterStrides x_stride{};    // batch: 0 if rows are packed
  DType dtype = DType::bf16;  // of x
  int heads = 0;
  int head_dim = 0;

  // Sequences, their lengths and their blocks of rows.
  DescaleBlocks blocks;

  // e4m3: element d of row `row` of a sequence is at out_stride.offset(batch, row, head) + d *
  // out_dim_stride, where packed rows count from the first sequence's, and transposed ones of a
  // sequence from its first_column() on.
  std::uint8_t* out = nullptr;
  OuterStrides out_stride{};
  std::int64_t out_dim_stride = 1;
  bool is_transposed = false;  // out_stride.seq is 1 then, otherwise out_dim_stride is 1
  int out_columns = 0;         // N' or T' of out_transposed

  // Either an output, of blocks (stride's seq), or an input, of sequences and heads.
  float* descale = nullptr;
  const float* fixed_descale = nullptr;
  OuterStrides descale_stride{};  // of the one that is given

  // The rotation of the head dim, if there is one: signs, then the butterflies, then this factor.
  bool is_rotated = false;
  NegativeDims negative_dims{};
  float rotation_factor = 1.0f;  // 1 / sqrt(D)

  Rotary rotary{};
  const std::int64_t* positions = nullptr;  // null: places in the sequences
  std::int64_t positions_batch_stride = 0;
  int max_positions = 0;

  int multiprocessors = 0;  // of the GPU
};

}  // namespace tilewright
