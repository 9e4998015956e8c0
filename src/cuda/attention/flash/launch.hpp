// The flash kernel's host side, one function for each of its shapes.
#pragma once

#include "cuda/attention/flash/plan.hpp"
#include "ops/attention/params.hpp"
#include "ops/plan.hpp"

namespace tilewright::cuda {

// Queues the kernel as planned, and the merge of splits.
void launch_flash(const AttentionParams& p, const Plan& plan, Stream stream);

// Queues config kIndex; `p` has the outputs of its tiles. Each is compiled by itself, from
// instance.cu.in.
template <int kIndex>
void launch_flash_config(const AttentionParams& p, const FlashPlan& plan, void* ticket,
                         Stream stream);

// Queues the merge of parts: `parts` has their un-normalised O, maxima and sums, `p` the result.
void launch_flash_merge(const AttentionParams& p, const AttentionParams& parts, int splits,
                        Stream stream);

}  // namespace tilewright::cuda
