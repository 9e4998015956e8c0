// Writing the keys and values of new tokens into a KV cache, rotated and quantised on the way.
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

// Shapes: T rows (new tokens), B sequences, Nn new tokens of each, H query heads, Hk key/value
// heads, D head dim of q and k, Dv of v.
//   k        (T, Hk, D) or (B, Nn, Hk, D)   fp16 or bf16, on the CPU fp32 too
//   v        (T, Hk, Dv) or (B, Nn, Hk, Dv), the dtype of k
//   k_cache  (pages, page size, Hk, D), or contiguous: (entries, capacity, Hk, D), where an entry
//            holds a sequence
//   v_cache  the same with Dv
// The caches' dtype is that of k, or e4m3. The last dimension is contiguous; every other stride is
// free, in elements. So pages with tokens outside of heads, with heads outside of tokens, and with
// keys and values in turn are all views. All sizes are at least 1. All tensors live on one device.
// No output may share a byte with another one or with an input. Only the rows' slots are written.
//
// Where rows go. Either by slots:
//   slot_mapping    (T) int64: page * page size + place in the page, or entry * capacity + place.
//                   A row of -1 is not stored
// or behind the keys that are there, row i of sequence b at position cache_seqlens[b] + i:
//   cache_seqlens   (B) int32: the keys that are there. They do not change
//   cu_seqlens_new  (B + 1) int32, from 0, ascending, up to T at most: k is (T, Hk, D) and sequence
//                   b has the rows [cu_seqlens_new[b], cu_seqlens_new[b + 1]). Without it k is (B,
//                   Nn, Hk, D). Rows beyond the last sequence are not stored
//   block_table     (B, max_pages) int32: position p of sequence b is in page block_table[b, p /
//                   page size]. With it the cache is paged, without it contiguous
//   cache_batch_idx (B) int32: the entries of a contiguous cache that hold the sequences. Without
//                   it sequence b has entry b, and there are B of them
//
// Rotation (RoPE) of keys, never of values, and of queries:
//   rotary_cos, rotary_sin  (max_positions, R / 2) fp32 or the dtype of k; R is even and at most D.
//                   The first R dims of a row at position p are rotated in pairs, pair i by the
//                   angle whose cosine and sine are at [p, i]
//   positions       (T) or (B, Nn) int64; without it a row's position is that in its sequence, so
//                   that it must be given with slot_mapping
//   q, q_out        (T, H, D) or (B, Nn, H, D), the dtype of k: queries of the same tokens. All of
//                   them that have a position are rotated, stored or not
//
// Quantising. Caches of e4m3 hold value / descale. Of each of k and v one of these is given:
//   k_descale, v_descale                    fp32, (1); or (B, Hk), not with slot_mapping
//   computed_k_descale, computed_v_descale  fp32, (pages, page size, Hk), an output: the descale of
//                   each row that is stored
struct AppendKvTensors {
  ConstTensorView k;
  ConstTensorView v;
  TensorView k_cache;
  TensorView v_cache;
  std::optional<ConstTensorView> slot_mapping = std::nullopt;
  std::optional<ConstTensorView> cache_seqlens = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_new = std::nullopt;
  std::optional<ConstTensorView> block_table = std::nullopt;
  std::optional<ConstTensorView> cache_batch_idx = std::nullopt;
  std::optional<ConstTensorView> rotary_cos = std::nullopt;
  std::optional<ConstTensorView> rotary_sin = std::nullopt;
  std::optional<ConstTensorView> positions = std::nullopt;
  std::optional<ConstTensorView> q = std::nullopt;
  std::optional<TensorView> q_out = std::nullopt;
  std::optional<ConstTensorView> k_descale = std::nullopt;
  std::optional<ConstTensorView> v_descale = std::nullopt;
  std::optional<TensorView> computed_k_descale = std::nullopt;
  std::optional<TensorView> computed_v_descale = std::nullopt;
};

struct AppendKvOptions {
  // Pair i of a rotation is the dims 2 i and 2 i + 1 (GPT-J), not i and i + R / 2 (GPT-NeoX).
  bool interleaved = false;
  // Copies slots, lengths, pages and positions from the GPU to check their values. This waits for
  // the stream and cannot be captured in a CUDA graph. It is for debugging.
  bool check_values = false;
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The arithmetic is in FP32, where every operation is rounded to nearest even:
//
//   x1, x2  = the two of a pair
//   rotated = x1 cos - x2 sin, x2 cos + x1 sin
//   stored  = rotated, or x where nothing is rotated, rounded to the cache's dtype; or of e4m3
//             e4m3(rotated / descale), which saturates to +-448
//   descale = max(amax / 448, FLT_MIN), where computed; amax is the largest finite magnitude of the
//             row and head after its rotation, and descale is 1 where there is none but 0
//
// What is neither rotated nor quantised is copied bit for bit; a NaN stays one. CPU and GPU give
// the same bytes.
//
// Values of slots, lengths, pages and positions are checked on CPU tensors, and on CUDA tensors if
// options.check_values is set: no two rows may go to one slot, and each must be in the cache, in
// the block table and in the rotation's tables. Where values are not checked, rows for which that
// does not hold are left out, their queries too if it is the position that is wrong; which of two
// rows a slot then has is not said.
//
// On CUDA tensors the work is queued on `stream` and the call returns at once; it needs no
// workspace, neither allocates nor synchronises and can be captured in a CUDA graph, if values are
// not checked. Throws tilewright::Error, with nothing written, when an argument is wrong or no
// kernel can run the problem.
void append_kv(const AppendKvTensors& tensors, const AppendKvOptions& options = {},
               Stream stream = nullptr);

// ---- The operation, as the registry describes it

struct AppendKvFacts {
  int head_dim_multiple = 1;
};

// What decides which kernels can run a call. Sizes are at least 1 and less than 2^30.
struct AppendKvProblem {
  DType dtype = DType::bf16;  // of k
  std::int64_t rows = 1;      // T, or B x Nn
  std::int64_t heads = 0;     // H; 0 without q
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 0;  // Dv; 0: head_dim
};

struct AppendKvParams;

struct AppendKv {
  static constexpr std::string_view kName = "append_kv";
  using Tensors = AppendKvTensors;
  using Options = AppendKvOptions;
  using Problem = AppendKvProblem;
  using Facts = AppendKvFacts;
  using Params = AppendKvParams;
};

// The library has the table.
template <>
std::span<const Kernel<AppendKv>> Table<AppendKv>::rows();
extern template struct Table<AppendKv>;

}  // namespace tilewright
