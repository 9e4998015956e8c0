// The launchers of the kernel dsv4_decode.
#pragma once

#include "cuda/attention/dsv4_decode/configs.hpp"
#include "cuda/attention/dsv4_decode/plan.hpp"
#include "ops/dsv4_attention/params.hpp"
#include "ops/plan.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues a call as planned.
void launch_dsv4_decode(const Dsv4AttentionParams& p, const Plan& plan, Stream stream);

// The same, of rows in kDsv4Formats[kFormats].
template <int kFormats>
void launch_dsv4_formats(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream);

// Queues the launch that merges what a call's blocks have left.
void launch_dsv4_merge(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream);

}  // namespace tilewright::cuda
