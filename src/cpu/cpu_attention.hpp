#pragma once

#include "ops/attention/params.hpp"

namespace tilewright::cpu {

// FlashAttention-2's tiling on all cores, in FP32, for FP32, FP16 or BF16 tensors.
void attention(const AttentionParams& params, Stream);

}  // namespace tilewright::cpu
