// DeepSeek-V4's attention: multi-query, of head dim 512, where one vector of a token is its key and
// its value. Keys come from two scopes, a window of the last tokens and a compressed past, whose
// rows lie in paged caches in any of several formats (kv_rows.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/kv_rows.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

inline constexpr int kDsv4HeadDim = 512;
inline constexpr int kDsv4RotaryDims = 64;  // the last ones

// Shapes: B requests, Nq new tokens of each, H query heads. With cu_seqlens_q requests have
// different numbers of new tokens, Tq in all; (B, Nq) below is then (Tq). Every dimension that is
// called contiguous has stride 1; every other stride is free, in elements.
//
// A scope is the keys that queries see in one cache. Its rows are
//   rows  (pages, page_size, 512) bf16, or (pages, page_size, bytes of a row) u8, as of kv_rows.hpp
// Which of them a token sees is given as a range or as a list.
//
// A range of positions:
//   range_end    (B, Nq) int32: the position behind the last key that the token sees
//   range_begin  (B, Nq) int32: the first one; 0 if absent
//   block_table  (B, max_pages) int32, contiguous in its last dimension: position p of request b
//                lies in row p % page_size of page block_table[b, p / page_size]. Absent: request
//                b has page b. Entries that no token's range needs may be anything
//   ring         the request's pages are a ring of so many rows, a multiple of page_size or at most
//                page_size: position p lies where p % ring would. A range has at most so many
//                positions: those before range_end - ring are not in the cache. 0: no ring
//   most_keys    a bound: no range has more positions. With it short ranges in a large cache are
//                planned as such; without, parts are planned, and workspace is asked for, as if
//                ranges could be as long as the request's pages or the ring. 0: no such bound
// A list:
//   indices      (B, Nq, L) int32, contiguous in its last dimension: keys as slots, page *
//                page_size + row. -1 is no key. A slot that occurs twice counts twice. Entries
//                behind a list's length may be anything
//   list_lengths (B) int32: only so many of the entries of each of request b's tokens count; L if
//                absent
struct Dsv4Scope {
  ConstTensorView rows;
  std::optional<ConstTensorView> range_end = std::nullopt;
  std::optional<ConstTensorView> range_begin = std::nullopt;
  std::optional<ConstTensorView> block_table = std::nullopt;
  std::int64_t ring = 0;
  std::int64_t most_keys = 0;
  std::optional<ConstTensorView> indices = std::nullopt;
  std::optional<ConstTensorView> list_lengths = std::nullopt;
};

//   q      (B, Nq, H, 512), or (Tq, H, 512), bf16, on the CPU fp32 too. H is from 1 to 128, Nq from
//          1 to 8. The head dimension is contiguous
//   o      the same shape; the dtype of q; or fp32 with row_max and row_sum; or e4m3 with o_scale
//   window, compressed   the two scopes; at least one of them, or fresh_rows, is given. A key that
//          is in both counts twice, as the model has it
//   fresh_rows  (B, Nq, 512) or (Tq, 512), the dtype of q: keys of the new tokens that no cache
//          holds. Token i of a request sees its fresh rows 0 to i, beside its scopes
//   sinks  (H) fp32: a logit for each head, not multiplied by the scale, of one more key whose
//          value is 0. -infinity has no effect, +infinity gives o = 0 and lse = +infinity, NaN
//          gives NaN
//   lse    (B, H, Nq) or (H, Tq) fp32, natural log: m + ln(l). It counts the sink if
//          options.lse_counts_sink. A row without keys and without a sink: o = 0, lse = -infinity
//   row_max, row_sum   fp32, the shape of lse. With them o is fp32 and un-normalised, as of
//          AttentionTensors: a result to be merged with others (merge_states). (o, lse) alone could
//          not be merged, since o is then a sum of exp(s - m) v and m is not known
//   rotary_cos, rotary_sin, positions   with them the last 64 dims of every o are rotated back: by
//          the conjugate RoPE, interleaved pairs, at the token's position, after normalising.
//          Tables (max_positions, 32) fp32, positions (B, Nq) int64. Not with row_max
//   o_scale   (B, Nq, H, 4) or (Tq, H, 4) fp32, an output: o is e4m3, and 128 neighbouring values
//          share the scale 2^ceil(log2(max(amax, 1e-4) / 448)): value = scale * byte
//   cu_seqlens_q   (B + 1) int32, as of AttentionTensors. A request may have no new token
//
// On CPU tensors the values of ranges, tables, indices, lengths and positions are checked, and that
// no UE8M0 scale of a row that a token sees is 255. On CUDA tensors they are checked only if
// options.check_values is set. Without it a range's part outside of the cache, and a page or slot
// out of range, count as no key; of a range that is longer than ring or most_keys the last so many
// positions count; a length out of range counts as the nearest in range. No access strays.
struct Dsv4AttentionTensors {
  ConstTensorView q;
  TensorView o;
  std::optional<Dsv4Scope> window = std::nullopt;
  std::optional<Dsv4Scope> compressed = std::nullopt;
  std::optional<ConstTensorView> fresh_rows = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
  std::optional<TensorView> lse = std::nullopt;
  std::optional<TensorView> row_max = std::nullopt;
  std::optional<TensorView> row_sum = std::nullopt;
  std::optional<ConstTensorView> rotary_cos = std::nullopt;
  std::optional<ConstTensorView> rotary_sin = std::nullopt;
  std::optional<ConstTensorView> positions = std::nullopt;
  std::optional<TensorView> o_scale = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_q = std::nullopt;
};

struct Dsv4AttentionOptions {
  // Multiplies q . k. It is from 0 to 1e38, or 1 / sqrt(512) if absent.
  std::optional<float> scale = std::nullopt;
  // FlashMLA's LSE leaves the sink out, whatever it is; o, row_max and row_sum count it in either
  // case.
  bool lse_counts_sink = true;
  // Copies ranges, tables, indices and lengths from the GPU to check their values. This waits for
  // the stream and cannot be captured in a CUDA graph. It is for debugging.
  bool check_values = false;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that dsv4_attention() needs. It depends on shapes, dtypes and devices,
// never on data. Throws what the call would throw, the workspace check aside.
std::size_t dsv4_attention_workspace_bytes(const Dsv4AttentionTensors& tensors,
                                           const Dsv4AttentionOptions& options = {});

// For each token and head, over all keys k that the token sees:
//
//   s_k = scale * q . k      m = max(s_k, sink)      l = sum exp(s_k - m) + exp(sink - m)
//   o = sum exp(s_k - m) k / l                       lse = m + ln(l)
//
// The formula is DeepSeek-V4's (arXiv 2606.19348, section 2.3). A row's bits depend on its own
// request alone: not on the rest of the batch, nor on its place there, nor on where its rows lie.
// A NaN in q, in a key that the row sees or in its sink makes the row NaN; rows of the caches that
// no token sees may be anything.
//
// On CUDA tensors the work is queued on `stream` and the call returns at once; it neither allocates
// nor synchronises and can be captured in a CUDA graph, which may be replayed with other ranges,
// tables, lists and lengths in the same tensors. On CPU tensors the results are there on return.
// Throws tilewright::Error, with nothing written, when an argument is wrong or no kernel can run
// the problem.
void dsv4_attention(const Dsv4AttentionTensors& tensors, const Dsv4AttentionOptions& options = {},
                    Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
