// The checks of a call of append_kv(), besides those of attention_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/append_kv/params.hpp"
#include "ops/attention_checks.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const AppendKvTensors& tensors, const AppendKvOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const AppendKvTensors& tensors, const KernelInfo& kernel);

// Checks the values of slots, lengths, pages and positions. If they are on a GPU, it copies them
// from there, after the stream's work. `rows` are those of the call.
void check_values(const AppendKvTensors& tensors, const AppendRows& rows, Stream stream);

// The tokens of k, v or q, of all sequences.
inline std::int64_t rows_in(const ConstTensorView& t) {
  return t.rank == 4 ? t.shape[0] * t.shape[1] : t.shape[0];
}

}  // namespace tilewright
