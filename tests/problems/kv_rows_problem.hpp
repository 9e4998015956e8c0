// Problems of DeepSeek-V4's KV rows: formats, pages, inputs; and whether a result is right.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::test {

// Of a pair of calls: vectors into rows, and rows, whose bytes are random, into vectors.
struct RowsProblem {
  KvRowFormat format = KvRowFormat::bf16;
  DType dtype = DType::bf16;  // of the vectors
  std::int64_t rows = 20;
  std::int64_t pages = 6;
  std::int64_t page_size = 8;
  bool has_specials = false;  // groups of all magnitudes, of ties, with NaN and infinities
  bool is_padded = false;     // gaps between vectors, rows and pages, where formats have them
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const RowsProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct RowsSet {
  Tensor vectors, rows, slot_mapping;

  QuantizeKvRowsTensors quantize() {
    return {.x = vectors.view(), .rows = rows.view(), .slot_mapping = slot_mapping.view()};
  }
  DequantizeKvRowsTensors dequantize() {
    return {.rows = rows.view(), .out = vectors.view(), .slot_mapping = slot_mapping.view()};
  }
};

using RowsHostSet = RowsSet<reference::HostTensor>;

// Inputs, and outputs and gaps filled with kUnwritten. Some slots are -1.
RowsHostSet make_vectors(const RowsProblem& problem);  // to be quantised
RowsHostSet make_rows(const RowsProblem& problem);     // to be dequantised

// Every byte of the output as the oracle has it, what is not written included.
void expect_quantized(const RowsProblem& problem, const RowsHostSet& result);
void expect_dequantized(const RowsProblem& problem, const RowsHostSet& result);

// All formats in pages of several sizes, all small.
std::vector<RowsProblem> rows_problems();

}  // namespace tilewright::test
