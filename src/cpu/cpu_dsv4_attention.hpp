#pragma once

#include "ops/dsv4_attention/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cpu {

// DeepSeek-V4's attention on all cores, in FP32, for FP32 or BF16 queries and rows in any format.
void dsv4_attention(const Dsv4AttentionParams& params, Stream);

}  // namespace tilewright::cpu
