// The checks of a call of rotate_quantize().
#pragma once

#include "ops/attention_checks.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const RotateQuantizeTensors& tensors, const RotateQuantizeOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const RotateQuantizeTensors& tensors, const KernelInfo& kernel);

// Checks the values of lengths, positions and fixed_descale. If they are on a GPU, it copies them
// from there, after the stream's work.
void check_values(const RotateQuantizeTensors& tensors, Stream stream);

// The number of sequences in tensors that check_arguments() has passed.
inline std::int64_t batch_size(const RotateQuantizeTensors& t) {
  return t.cu_seqlens ? t.cu_seqlens->shape[0] - 1 : t.x.shape[0];
}

}  // namespace tilewright
