// The attention kernels' host entry points: checked arguments in, launches on the stream out.
#pragma once

#include "attention_params.hpp"

namespace tilewright::cuda {

void launch_k1(const AttentionParams& params, Stream stream);
void launch_k2(const AttentionParams& params, Stream stream);
void launch_k3_1(const AttentionParams& params, Stream stream);
void launch_k3_2(const AttentionParams& params, Stream stream);
void launch_k3_3(const AttentionParams& params, Stream stream);
void launch_k4_qk(const AttentionParams& params, Stream stream);
void launch_k4(const AttentionParams& params, Stream stream);
void launch_k5(const AttentionParams& params, Stream stream);
void launch_k6_pingpong(const AttentionParams& params, Stream stream);
void launch_k6_overlap(const AttentionParams& params, Stream stream);
void launch_k6(const AttentionParams& params, Stream stream);
void launch_flash(const AttentionParams& params, Stream stream);

}  // namespace tilewright::cuda
