// Merging attention results over disjoint sets of keys into the result over all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Shapes: P parts, T tokens (query rows), H query heads, Dv head dim of v and o. A part is the
// result of attention over some of the keys, in one of two forms.
//   o        (P, T, H, Dv)  fp32, fp16 or bf16
// Normalised, with its log-sum-exp:
//   lse      (P, H, T)      fp32, natural log
// Un-normalised, as attention() gives it with row_max and row_sum; o is fp32:
//   row_max  (P, H, T)      fp32, m
//   row_sum  (P, H, T)      fp32, l
// The result:
//   out      (T, H, Dv)     the dtype of o, or any of the three where o is fp32
//   lse_out  (H, T)         fp32
// With row_max_out and row_sum_out, both (H, T) fp32, out is un-normalised and fp32. They take
// un-normalised parts.
//   sinks    (H)            fp32: a logit for each head, as attention() has it. It counts once, so
//                           the parts must come without it
// The last dimension of o and out is contiguous; every other stride is free, in elements. All sizes
// are at least 1. All tensors live on one device. No output may share a byte with another one or
// with an input.
struct MergeStatesTensors {
  ConstTensorView o;
  TensorView out;
  std::optional<ConstTensorView> lse = std::nullopt;
  std::optional<ConstTensorView> row_max = std::nullopt;
  std::optional<ConstTensorView> row_sum = std::nullopt;
  std::optional<TensorView> lse_out = std::nullopt;
  std::optional<TensorView> row_max_out = std::nullopt;
  std::optional<TensorView> row_sum_out = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
};

struct MergeStatesOptions {
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// For each row, with m_p = lse and l_p = 1 of a normalised part:
//
//   m'  = max m_p, and the sink             w_p = exp(m_p - m'), which is 1 where m_p = m'
//   l'  = sum w_p l_p + exp(sink - m')      o'  = sum w_p o_p
//   out = o' / l', or o' if un-normalised   lse_out = m' + ln(l')    row_max_out = m'
//                                                                    row_sum_out = l'
//
// A part whose m_p is -infinity has no keys for the row: its l and o are not looked at and may be
// anything, even NaN. A row without keys in any part, and without a sink, gives out = 0, lse_out =
// row_max_out = -infinity and row_sum_out = 0. A part whose m_p is +infinity, as of an infinite
// sink, has all the weight, which several such parts share equally; lse_out is then +infinity. A
// NaN in lse, row_max, row_sum or the sink makes out and all statistics of the row NaN; a NaN in o
// makes its element of out NaN, as a NaN in v would.
//
// Arithmetic is in FP32, and sums are taken in the order of the parts, so that repeated calls give
// the same bits. On CUDA tensors the work is queued on `stream` and the call returns at once; it
// needs no workspace, neither allocates nor synchronises, and can be captured in a CUDA graph. On
// CPU tensors the results are there on return. Throws tilewright::Error, with nothing written, when
// an argument is wrong or no kernel can run the problem.
void merge_states(const MergeStatesTensors& tensors, const MergeStatesOptions& options = {},
                  Stream stream = nullptr);

// ---- The operation, as the registry describes it

struct MergeStatesFacts {
  int head_dim_multiple = 1;
};

// What decides which kernels can run a merge. Sizes are at least 1 and less than 2^30.
struct MergeStatesProblem {
  DType dtype = DType::bf16;  // of o
  std::int64_t parts = 1;
  std::int64_t tokens = 1;
  std::int64_t heads = 1;
  std::int64_t head_dim = 128;  // Dv
};

struct MergeStatesParams;

struct MergeStates {
  static constexpr std::string_view kName = "merge_states";
  using Tensors = MergeStatesTensors;
  using Options = MergeStatesOptions;
  using Problem = MergeStatesProblem;
  using Facts = MergeStatesFacts;
  using Params = MergeStatesParams;
};

// The library has the table.
template <>
std::span<const Kernel<MergeStates>> Table<MergeStates>::rows();
extern template struct Table<MergeStates>;

}  // namespace tilewright
