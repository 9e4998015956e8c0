// Descales of FP8 operands, as kernels read them.
#pragma once

#include "ops/attention_fp8/params.hpp"

namespace tilewright::cuda {

// The descale of a sequence's block `block` of a head, where its first block is `first_block`.
__device__ inline float descale_at(const Fp8Descales& descales, int batch, int first_block,
                                   int head, int block = 0) {
  return descales.data == nullptr
             ? 1.0f
             : descales.data[descales.offset(batch, first_block + block, head)];
}

// P is scaled by 2^kP_log2 before it is rounded to E4M3. Its largest value is then 256 of 448, and
// weights down to 2^-14 keep all of their bits.
inline constexpr int kP_log2 = 8;

}  // namespace tilewright::cuda
