// The decode kernel's launchers: one function for each of its configs.
#pragma once

#include "cuda/attention/decode/plan.hpp"
#include "ops/attention_with_kvcache/params.hpp"
#include "ops/plan.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues a call as planned: the kernel, behind new rows' way into the caches, or what a call with
// shared prefixes takes.
void launch_decode(const AttentionWithKvCacheParams& p, const Plan& plan, Stream stream);

// Queues the kernel alone, without new rows or shared prefixes. Its workspace begins at
// p.workspace.
void launch_decode_rows(const AttentionWithKvCacheParams& p, const DecodeDetails& details,
                        Stream stream);

// Queues config kIndex. Each config is compiled in a file of its own, made from instance.cu.in.
template <int kIndex>
void launch_decode_config(const AttentionWithKvCacheParams& p, const DecodeDetails& details,
                          Stream stream);

}  // namespace tilewright::cuda
