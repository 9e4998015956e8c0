// Attention's GPU kernels, for its table.
#pragma once

#include "ops/attention/params.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionFacts& facts);

namespace cuda {

// Each queues a rung of the ladder on the current device. Its arguments have been checked.
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

// The production kernel's row of the table, with its variants.
Kernel<Attention> flash_kernel();

}  // namespace cuda
}  // namespace tilewright
