// Rotation by position (RoPE) and its inverse, the frequencies of a rotation and its tables.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// ---- Frequencies and tables, on the host

// YaRN (arXiv 2309.00071): dims that turn seldom within the original context are slowed down. No
// factor of its attention scaling ("mscale") is in the frequencies, nor in the tables.
struct RopeYarn {
  double factor = 16.0;
  std::int64_t original_positions = 65536;  // of the context before it was extended
  double beta_fast = 32.0;                  // turns in it from which on a dim keeps its frequency
  double beta_slow = 1.0;                   // turns in it up to which it is slowed down by `factor`
};

// DeepSeek-V4 has two: theta 10000 without YaRN in layers that attend to a window alone, and theta
// 160000 with the YaRN above in all others.
struct RopeScaling {
  double theta = 10000.0;
  std::int64_t dims = 64;  // rotated dims R, even
  std::optional<RopeYarn> yarn = std::nullopt;
};

// The R / 2 frequencies, the angles from a position to the next, computed in double and rounded to
// FP32:
//
//   f_i   = theta^(-2 i / R)
//   d(n)  = R ln(original_positions / (2 pi n)) / (2 ln(theta))     the dim that makes n turns
//   low   = max(floor(d(beta_fast)), 0)      high = min(ceil(d(beta_slow)), R - 1)
//   ramp  = clamp((i - low) / (high - low), 0, 1), where high - low is 0.001 if it would be 0
//   f_i   = f_i (1 - ramp) + f_i / factor * ramp                    with YaRN
std::vector<float> rope_frequencies(const RopeScaling& scaling);

// Fills tables (positions, R / 2) fp32 on the CPU, contiguous in the last dimension, for positions
// from 0 on: the cosine and sine of float(position) * float(frequency), a product in FP32 as
// models' own code has it, rounded from double.
void rope_tables(const RopeScaling& scaling, const TensorView& cos, const TensorView& sin);

// ---- The rotation

// Shapes: T rows (tokens), H heads, D head dim.
//   x    (T, H, D) or (T, D)   fp16 or bf16, on the CPU fp32 too
//   out  the shape and dtype of x. It is x itself, with the same data and strides, or apart from it
//   rotary_cos, rotary_sin  (max_positions, R / 2) fp32 or the dtype of x; R is at most D
//   positions  (T) int64
// The last dimensions are contiguous; every other stride is free, in elements. All sizes are at
// least 1. All tensors live on one device. out may share no byte with an input but x.
struct RopeTensors {
  ConstTensorView x;
  TensorView out;
  ConstTensorView rotary_cos;
  ConstTensorView rotary_sin;
  ConstTensorView positions;
};

struct RopeOptions {
  // Pair i is the dims 2 i and 2 i + 1 of the R rotated ones (GPT-J, DeepSeek), not i and i + R / 2
  // (GPT-NeoX).
  bool interleaved = true;
  // The last R dims are rotated, as DeepSeek has it, not the first.
  bool rotates_last = true;
  // Rotates back: by the conjugate, whose sines are negative.
  bool inverse = false;
  // Copies positions from the GPU to check their values. This waits for the stream and cannot be
  // captured in a CUDA graph. It is for debugging.
  bool check_values = false;
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// With x1, x2 the two of a pair and its cosine and sine at the row's position, in FP32, where every
// operation is rounded to nearest even:
//
//   out = x1 cos - x2 sin, x2 cos + x1 sin, rounded to the dtype of x
//
// as of append_kv(). What is not rotated is copied bit for bit; a NaN stays one. CPU and GPU give
// the same bytes.
//
// Values of positions are checked on CPU tensors, and on CUDA tensors if options.check_values is
// set: each must be in the tables. Where they are not checked, rows whose positions are not in the
// tables are left out: out is not written there.
//
// On CUDA tensors D is a multiple of 8 and R one of 16, and x and out are aligned to 16 bytes, row
// by row. The work is queued on `stream` and the call returns at once; it needs no workspace,
// neither allocates nor synchronises and can be captured in a CUDA graph, if values are not
// checked. Throws tilewright::Error, with nothing written, when an argument is wrong or no kernel
// can run the problem.
void rope(const RopeTensors& tensors, const RopeOptions& options = {}, Stream stream = nullptr);

// ---- The operation, as the registry describes it

struct RopeFacts {
  int head_dim_multiple = 1;
  int rotary_dims_multiple = 1;
};

// What decides which kernels can run a call. Sizes are at least 1 and less than 2^30.
struct RopeProblem {
  DType dtype = DType::bf16;  // of x
  std::int64_t rows = 1;      // T
  std::int64_t heads = 1;
  std::int64_t head_dim = 512;
  std::int64_t rotary_dims = 64;
};

struct RopeParams;

struct Rope {
  static constexpr std::string_view kName = "rope";
  using Tensors = RopeTensors;
  using Options = RopeOptions;
  using Problem = RopeProblem;
  using Facts = RopeFacts;
  using Params = RopeParams;
};

// The library has the table.
template <>
std::span<const Kernel<Rope>> Table<Rope>::rows();
extern template struct Table<Rope>;

}  // namespace tilewright
