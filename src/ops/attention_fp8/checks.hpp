// The checks of a call of attention_fp8(), and the parts of it that attention() has, too.
#pragma once

#include "ops/attention_checks.hpp"
#include "tilewright/attention_fp8.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const AttentionFp8Tensors& tensors, const KernelInfo& kernel);

// Checks the values of lengths and descales. If they are on a GPU, it copies them from there, after
// the stream's work.
void check_values(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options,
                  Stream stream);

// The tensors that attention() has, too. v is given, or v_transposed as one (B, Nk, Hk, Dv) whose
// rows are contiguous in place of its head dim.
AttentionTensors attention_part(const AttentionFp8Tensors& tensors);
AttentionOptions attention_part(const AttentionFp8Options& options);

}  // namespace tilewright
