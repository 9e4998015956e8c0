// The checks of an attention call. Each throws tilewright::Error, which names the argument, what it
// was and what it must be.
#pragma once

#include <cstdint>
#include <string>

#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

[[noreturn]] void fail(const std::string& argument, const std::string& message);

// Everything that can be said of a call before a kernel is chosen; looks at no data.
void check_arguments(const AttentionTensors& tensors, const AttentionOptions& options);

// Addresses and strides against what the kernel's loads and stores assume.
void check_alignment(const AttentionTensors& tensors, const KernelInfo& kernel);

void check_workspace(Workspace workspace, std::size_t needed_bytes, const KernelInfo& kernel);

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
