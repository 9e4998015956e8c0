// The launchers of the kernel dsv4_decode.
#pragma once

#include "cuda/attention/dsv4_decode/plan.hpp"
#include "ops/dsv4_attention/params.hpp"
#include "ops/plan.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues a call as planned.
void launch_dsv4_decode(const Dsv4AttentionParams& p, const Plan& plan, Stream stream);

// The configs: a block an item, and a cluster an item.
void launch_dsv4_block(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream);
void launch_dsv4_cluster(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream);

}  // namespace tilewright::cuda
