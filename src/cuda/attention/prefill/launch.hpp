// The prefill kernel's launchers: one function for each of its configs.
#pragma once

#include "cuda/attention/prefill/plan.hpp"
#include "ops/attention_with_kvcache/params.hpp"
#include "ops/plan.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues what is planned: the launch that appends the call's new rows, that of decode for sequences
// of few tokens, and that of the kernel for the others, with the merge if their keys are split.
void launch_prefill(const AttentionWithKvCacheParams& p, const Plan& plan, Stream stream);

// Queues the kernel alone. Where `plan` splits the keys, split i of batch entry b leaves its
// results at entry i * B + b of the outputs in `p`; B is 1 for packed sequences.
void launch_prefill_tiles(const AttentionWithKvCacheParams& p, const PrefillPlan& plan,
                          Stream stream);

// Queues config kIndex. The outputs in `p` are those of its tiles. Each config is compiled in a
// file of its own, made from instance.cu.in.
template <int kIndex>
void launch_prefill_config(const AttentionWithKvCacheParams& p, const PrefillPlan& plan,
                           Stream stream);

// Queues the merge of the splits that are planned: `splits` has their un-normalised O, m and l, and
// `p` the result.
void launch_prefill_merge(const AttentionWithKvCacheParams& p,
                          const AttentionWithKvCacheParams& splits, const PrefillPlan& plan,
                          Stream stream);

}  // namespace tilewright::cuda
