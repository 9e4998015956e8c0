// The flash kernel's launchers: one function for each of its configs.
#pragma once

#include "cuda/attention/flash/plan.hpp"
#include "ops/attention/params.hpp"
#include "ops/plan.hpp"

namespace tilewright::cuda {

// Queues the kernel as planned and, if the keys are split, the merge of the splits.
void launch_flash(const AttentionParams& p, const Plan& plan, Stream stream);

// Queues config kIndex. The outputs in `p` are those of its tiles. Each config is compiled in a
// file of its own, made from instance.cu.in.
template <int kIndex>
void launch_flash_config(const AttentionParams& p, const FlashPlan& plan, void* ticket,
                         Stream stream);

// Queues the merge of `count` splits: `splits` has their un-normalised O, m and l, and `p` the
// result.
void launch_flash_merge(const AttentionParams& p, const AttentionParams& splits, int count,
                        Stream stream);

}  // namespace tilewright::cuda
