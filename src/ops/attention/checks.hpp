// The checks of an attention call, besides those of attention_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/attention_checks.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const AttentionTensors& tensors, const AttentionOptions& options);

// The part of it that does not depend on the dtypes of q, k, v and o, whose ranks are right and
// which are on one device: all other arguments, and the sizes.
void check_all_but_rows(const AttentionTensors& tensors, const AttentionOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const AttentionTensors& tensors, const KernelInfo& kernel);

// The part of it that concerns tensors other than q, k, v and o.
void check_vectors_are_aligned(const AttentionTensors& tensors);

// Checks the values of cu_seqlens_q, cu_seqlens_k and seqused_k. If they are on a GPU, it copies
// them from there, after the stream's work.
void check_length_values(const AttentionTensors& tensors, Stream stream);

// The number of sequences in tensors that check_arguments() has passed.
std::int64_t batch_size(const AttentionTensors& tensors);

}  // namespace tilewright
