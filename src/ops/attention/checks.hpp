// The checks of an attention call, beside those of tensor_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/tensor_checks.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Everything that can be said of a call before a kernel is chosen; looks at no data.
void check_arguments(const AttentionTensors& tensors, const AttentionOptions& options);

// Addresses and strides against what the kernel's loads and stores assume.
void check_alignment(const AttentionTensors& tensors, const KernelInfo& kernel);

// The values of cu_seqlens_q, cu_seqlens_k and seqused_k. Those on a GPU are copied from there
// behind the stream's work.
void check_length_values(const AttentionTensors& tensors, Stream stream);

// The number of sequences, of tensors that check_arguments() has passed.
std::int64_t batch_size(const AttentionTensors& tensors);

// Sizes of q, k, v and o, packed or not: ([batch,] seqlen, heads, head_dim).
inline std::int64_t seqlen_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 3]; }
inline std::int64_t heads_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 2]; }
inline std::int64_t head_dim_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 1]; }

}  // namespace tilewright
