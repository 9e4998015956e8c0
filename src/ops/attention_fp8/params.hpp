// A checked call of attention_fp8(), as all of its kernels receive it.
#pragma once

#include <cstdint>

#include "common/columns.hpp"
#include "common/descale_blocks.hpp"
#include "common/strides.hpp"
#include "ops/attention/params.hpp"
#include "tilewright/attention_fp8.hpp"

namespace tilewright {

// The descales of q, k or v. Strides of what they do not depend on are 0: those of one number for
// the tensor have none, and those of sequences and heads have none of blocks.
struct Fp8Descales {
  const float* data = nullptr;  // null: 1
  OuterStrides stride{};        // seq: from block to block
  int heads_per_descale = 1;    // q's heads, where they share their key/value head's

  // The place of a head's first descale. `first_block` is its sequence's
  // (common/descale_blocks.hpp), behind which the others lie stride.seq apart.
  TILEWRIGHT_HOST_DEVICE constexpr std::int64_t offset(int batch, int first_block, int head) const {
    return stride.offset(batch, first_block, head / heads_per_descale);
  }
};

// `dtype` is that of o, or fp32 with statistics; q, k and v are e4m3. Element d of v's row `key` is
// at v_stride.offset(batch, key, head) + d * v_dim_stride. If v is transposed, keys of a sequence
// count from its first_column() on.
struct AttentionFp8Params : AttentionParams {
  bool is_v_transposed = false;   // v_stride.seq is 1 then, otherwise v_dim_stride is 1
  std::int64_t v_dim_stride = 1;  // a multiple of 16 if v is transposed, on a GPU
  int v_columns = 0;              // Nk' or Tk' of v_transposed

  int descale_rows = 0;  // of a block; 0: no descale has blocks
  Fp8Descales q_descale{};
  Fp8Descales k_descale{};
  Fp8Descales v_descale{};
};

}  // namespace tilewright
