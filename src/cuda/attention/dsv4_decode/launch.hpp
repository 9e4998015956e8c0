// The launcher of the kernel dsv4_decode.
#pragma once

#include "cuda/attention/dsv4_decode/plan.hpp"
#include "ops/dsv4_attention/params.hpp"
#include "ops/plan.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

void launch_dsv4_decode(const Dsv4AttentionParams& p, const Plan& plan, Stream stream);

}  // namespace tilewright::cuda
