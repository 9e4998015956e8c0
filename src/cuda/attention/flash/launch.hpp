// The flash kernel's host side, one function for each of its shapes.
#pragma once

#include "attention_params.hpp"
#include "cuda/attention/flash/plan.hpp"

namespace tilewright::cuda {

// Queues the kernel as launch_flash does, in this row of the table.
void launch_flash_row(int row, const AttentionParams& p, Stream stream);

// Queues choice kIndex; `p` has the outputs of its tiles. Each is compiled by itself, from
// instance.cu.in.
template <int kIndex>
void launch_flash_choice(const AttentionParams& p, const FlashPlan& plan, void* ticket,
                         Stream stream);

// Queues the merge of parts: `parts` has their un-normalised O, maxima and sums, `p` the result.
void launch_flash_merge(const AttentionParams& p, const AttentionParams& parts, int splits,
                        Stream stream);

}  // namespace tilewright::cuda
