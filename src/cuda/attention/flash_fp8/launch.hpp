// The launchers of the kernel flash_fp8: one function for each of its configs.
#pragma once

#include "cuda/attention/flash/plan.hpp"
#include "ops/attention_fp8/params.hpp"
#include "ops/plan.hpp"

namespace tilewright::cuda {

// Queues the kernel as planned and, if the keys are split, the merge of the splits.
void launch_flash_fp8(const AttentionFp8Params& p, const Plan& plan, Stream stream);

// Queues config kIndex. The outputs in `p` are those of its tiles. Each config is compiled in a
// file of its own, made from instance.cu.in.
template <int kIndex>
void launch_fp8_config(const AttentionFp8Params& p, const FlashPlan& plan, void* ticket,
                       Stream stream);

}  // namespace tilewright::cuda
