// Attention's kernels on GPUs, as its table has them.
#pragma once

#include "ops/attention/params.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {

// What a kernel's facts ask for, in words.
std::vector<Limit> limits_of(const AttentionFacts& facts);

namespace cuda {

// Queue a rung of the ladder, with checked arguments, on the current device.
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

// The production kernel's row, its variants included.
Kernel<Attention> flash_kernel();

}  // namespace cuda
}  // namespace tilewright
