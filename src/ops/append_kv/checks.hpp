// The checks of a call of append_kv(), besides those of tensor_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/append_kv/params.hpp"
#include "ops/tensor_checks.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright {

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const AppendKvTensors& tensors, const AppendKvOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const AppendKvTensors& tensors, const KernelInfo& kernel);

// Checks the values of slots, lengths, pages and positions. If they are on a GPU, it copies them
// from there, after the stream's work. `rows` are those of the call.
void check_values(const AppendKvTensors& tensors, const AppendRows& rows, Stream stream);

// Sizes of k, v and q: ([sequences,] tokens, heads, head_dim).
inline std::int64_t tokens_in(const ConstTensorView& t) { return t.shape[t.rank - 3]; }
inline std::int64_t heads_in(const ConstTensorView& t) { return t.shape[t.rank - 2]; }
inline std::int64_t head_dim_in(const ConstTensorView& t) { return t.shape[t.rank - 1]; }
inline std::int64_t rows_in(const ConstTensorView& t) {
  return t.rank == 4 ? t.shape[0] * t.shape[1] : t.shape[0];
}

}  // namespace tilewright
