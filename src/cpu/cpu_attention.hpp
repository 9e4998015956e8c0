#pragma once

#include "ops/attention/params.hpp"

namespace tilewright::cpu {

// FlashAttention-2 tiling over all cores, FP32 arithmetic on FP32, FP16 or BF16 tensors.
void attention(const AttentionParams& params, Stream);

}  // namespace tilewright::cpu
