// Quantising queries, keys and values for attention_fp8(): positions (RoPE), a random rotation of
// the head dim that spreads outliers (incoherent processing), and E4M3 with a descale for each
// block of rows, in one pass.
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

// The version of the formats in memory: blocks of descales, transposed values, and the signs of a
// seed. docs/fp8.md describes it.
inline constexpr int kFp8FormatVersion = 3;

// Shapes: B sequences, N rows of each, T rows of all of them together, H heads, D head dim.
//   x               (B, N, H, D), or packed (T, H, D)   fp16 or bf16, on the CPU fp32 too
//   out             the shape of x                      e4m3
//   out_transposed  (B, H, D, N'), or packed (H, D, T') e4m3, in place of out. N' (or T') is a
//                   multiple of 16 and at least N (or 16 (T / 16 + B)). Which column a packed row
//                   has is as of AttentionFp8Tensors. Columns of no row become 0
//   descale         fp32, an output: (B, H, ceil(N / M)), or packed (H, T / M + B), where M is
//                   options.descale_rows. Which block a row has is as of AttentionFp8Tensors.
//                   Blocks without rows get 1
//   fixed_descale   fp32, in place of descale: (1), or (B, H). Each is finite and at least FLT_MIN
//   cu_seqlens      (B + 1) int32: x is packed; from 0, ascending, up to T at most. Rows of out
//                   beyond the last sequence are not written
// The last dimension of x, out and out_transposed is contiguous; every other stride is free, in
// elements. All sizes are at least 1. All tensors live on one device. No output may share a byte
// with another one or with x or another input.
//
// Rotation by positions (RoPE), with append_kv()'s tables and arithmetic:
//   rotary_cos, rotary_sin  (max_positions, R / 2) fp32 or the dtype of x; R is even and at most D
//   positions               (B, N), or packed (T), int64; without it a row's position is its place
//                           in its sequence
struct RotateQuantizeTensors {
  ConstTensorView x;
  std::optional<TensorView> out = std::nullopt;
  std::optional<TensorView> out_transposed = std::nullopt;
  std::optional<TensorView> descale = std::nullopt;
  std::optional<ConstTensorView> fixed_descale = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens = std::nullopt;
  std::optional<ConstTensorView> rotary_cos = std::nullopt;
  std::optional<ConstTensorView> rotary_sin = std::nullopt;
  std::optional<ConstTensorView> positions = std::nullopt;
};

struct RotateQuantizeOptions {
  // The rows of a sequence that share a descale: 64 or 128.
  int descale_rows = 128;
  // Rotates the head dim, by signs that depend on this number: D must be a power of two from 2 to
  // 256. Queries and keys that are rotated by the same seed have the scores that they had. Absent:
  // no such rotation.
  std::optional<std::uint64_t> seed = std::nullopt;
  // RoPE's pair i is the dims 2 i and 2 i + 1 (GPT-J), not i and i + R / 2 (GPT-NeoX).
  bool interleaved = false;
  // Copies cu_seqlens, positions and fixed_descale from the GPU to check their values. This waits
  // for the stream and cannot be captured in a CUDA graph. It is for debugging. Values on the CPU
  // are always checked.
  bool check_values = false;
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The arithmetic is in FP32, where every operation is rounded to nearest even and no product and
// sum are fused. For each row:
//
//   1. RoPE, if its tables are given: x1, x2 = x1 cos - x2 sin, x2 cos + x1 sin
//   2. with a seed, the sign of each dim whose sign is -1 (below) changes
//   3. with a seed, Hadamard's butterflies for h = 1, 2, 4, ... D / 2, one after the other: for all
//      dims i whose bit h is 0, x[i], x[i + h] = x[i] + x[i + h], x[i] - x[i + h]; a -0 of the
//      results becomes 0
//   4. f = 1 / sqrt(D), rounded to FP32, with a seed; else f = 1
//   5. descale = max(amax * f / 448, FLT_MIN), or 1 where amax is 0; amax is the largest finite
//      magnitude of the block's rows and dims. For out_transposed, the least power of two that is
//      not below this
//   6. byte = e4m3(x * (f * (1 / descale))), to nearest even; beyond +-448 it saturates, infinities
//      too
//
// A NaN becomes the byte 0x7f. With a seed, one NaN makes all dims of its row and head NaN, and an
// infinity makes them infinities or NaNs, as the butterflies have it. CPU and GPU give the same
// bytes and descales.
//
// The sign of dim d is -1 where bit 63 of output d (from 0) of SplitMix64 is set, whose state
// starts at the seed: z = seed + (d + 1) 0x9e3779b97f4a7c15; z = (z ^ z >> 30) 0xbf58476d1ce4e5b9;
// z = (z ^ z >> 27) 0x94d049bb133111eb; z ^ z >> 31. All heads have the same signs.
//
// Values of cu_seqlens, positions and fixed_descale are checked on CPU tensors, and on CUDA tensors
// if options.check_values is set. Where they are not checked, a row whose position is not in the
// tables counts as zeros.
//
// On CUDA tensors the work is queued on `stream` and the call returns at once; it needs no
// workspace, neither allocates nor synchronises and can be captured in a CUDA graph, if values are
// not checked. Throws tilewright::Error, with nothing written, when an argument is wrong or no
// kernel can run the problem.
void rotate_quantize(const RotateQuantizeTensors& tensors,
                     const RotateQuantizeOptions& options = {}, Stream stream = nullptr);

// ---- The operation, as the registry describes it

struct RotateQuantizeFacts {
  std::span<const int> head_dims = {};  // empty: any up to 16384
};

// What decides which kernels can run a call. Sizes are at least 1 and less than 2^30.
struct RotateQuantizeProblem {
  DType dtype = DType::bf16;  // of x
  std::int64_t batch = 1;     // sequences
  std::int64_t len = 1;       // N; T if packed
  std::int64_t heads = 1;
  std::int64_t head_dim = 128;
  bool packed = false;
};

struct RotateQuantizeParams;

struct RotateQuantize {
  static constexpr std::string_view kName = "rotate_quantize";
  using Tensors = RotateQuantizeTensors;
  using Options = RotateQuantizeOptions;
  using Problem = RotateQuantizeProblem;
  using Facts = RotateQuantizeFacts;
  using Params = RotateQuantizeParams;
};

// The library has the table.
template <>
std::span<const Kernel<RotateQuantize>> Table<RotateQuantize>::rows();
extern template struct Table<RotateQuantize>;

}  // namespace tilewright
