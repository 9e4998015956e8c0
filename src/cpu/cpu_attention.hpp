#pragma once

#include "ops/attention/params.hpp"
#include "ops/attention_fp8/params.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cpu {

// FlashAttention-2's tiling on all cores, in FP32, for FP32, FP16 or BF16 tensors.
void attention(const AttentionParams& params, Stream);

// The same over KV caches, which may also be of E4M3, as may queries then; new rows are appended
// first.
void attention_with_kvcache(const AttentionWithKvCacheParams& params, Stream);

// The same of E4M3 rows with descales. The weights exp(s - m) are not rounded.
void attention_fp8(const AttentionFp8Params& params, Stream);

}  // namespace tilewright::cpu
