// GEMMs with NVFP4 weights, and activations in BF16 or FP16 (W4A16) or in NVFP4 too (W4A4).
// nvfp4.hpp has the format.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/nvfp4_weight.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// C = A B^T, plus a bias and a residual if given. Shapes: M rows of A (tokens), N rows of B (output
// features), K columns that are summed over, and a batch of L GEMMs. The batch L is the first
// dimension, and either all matrices have it or none has:
//
//   a     ([L,] M, K) bf16 or fp16, or the codes of NVFP4: ([L,] M, K / 2) e2m1x2
//   b     ([L,] N, K / 2) e2m1x2, the codes of the weight; or u8, the weight as packed by
//         prepack_nvfp4_weight(): ([L,] packed_nvfp4_weight_shape(N, K)), where N is that of c
//   sfb   the e4m3 scales of b's codes: linear ([L,] N, K / 16), or swizzled
//         ([L,] N up to a multiple of 128, K / 16 up to one of 4). Absent where b is packed
//   sfa   likewise the scales of a's codes, if a is NVFP4; else absent
//   c     ([L,] M, N) bf16, fp16 or fp32
//
//   global_scale_a, global_scale_b
//         fp32: (1) for the whole tensor, or ([L,] M) and ([L,] N), one for each row. 1 if absent.
//         a has one only if it is NVFP4
//   bias      (N), the dtype of c: added to every row
//   residual  ([L,] M, N), the dtype of c. May be c itself
//
// K is a multiple of 16. Along K, and along N of c and residual, elements are contiguous; a matrix
// of swizzled scales and a packed weight are contiguous as a whole. Every other stride is free, in
// elements. So tensors (M, K, L) with the batch outermost in memory can be given with their
// dimensions permuted, and a weight that the whole batch shares has the batch stride 0. All sizes
// are at least 1. All tensors live on one device. On a GPU rows of a, b, c and residual are aligned
// to 16 bytes and their strides are not negative; contiguous codes, of a or b, then have a K that
// is a multiple of 32. c may not share a byte with an input, or the call is refused; only a
// residual may be c itself, with the same address and strides. c may lie in an input's gaps: c and
// a may be columns of one buffer.
//
// The kernels take these, with c in any of its dtypes:
//
//   nvfp4         Hopper   a bf16, fp16 or NVFP4   b codes, packed  N and K multiples of 16
//   nvfp4_simple  Hopper   a bf16                  b codes          N a multiple of 16, K of 64
//   cpu           any CPU  a bf16, fp16 or NVFP4   b codes, packed  any N, K a multiple of 16
//
// nvfp4 packs a weight that is given as codes into the workspace, in each call: pack a weight once
// that is used again. On a GPU L x M x N x K is less than 2^47, with M, N and K rounded up to
// multiples of 8, 64 and 128.
struct GemmNvfp4Tensors {
  ConstTensorView a;
  ConstTensorView b;
  std::optional<ConstTensorView> sfb = std::nullopt;
  TensorView c;
  std::optional<ConstTensorView> sfa = std::nullopt;
  std::optional<ConstTensorView> global_scale_a = std::nullopt;
  std::optional<ConstTensorView> global_scale_b = std::nullopt;
  std::optional<ConstTensorView> bias = std::nullopt;
  std::optional<ConstTensorView> residual = std::nullopt;
};

struct GemmNvfp4Options {
  ScaleLayout sfa_layout = ScaleLayout::linear;
  ScaleLayout sfb_layout = ScaleLayout::linear;  // if b is codes
  // Each must be given if its global scale is.
  std::optional<GlobalScale> global_scale_a_kind = std::nullopt;
  std::optional<GlobalScale> global_scale_b_kind = std::nullopt;
  // The caller promises that b is packed and that all writes to it have ended before this call: the
  // host has waited for them, as after loading a model, or an earlier GEMM on this stream, called
  // without b_is_constant, has. The kernel may then read b's first tiles before the launches ahead
  // on the stream have ended.
  bool b_is_constant = false;
  // The bits of a row of c do not depend on M, on L or on the other rows.
  bool batch_invariant = false;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that gemm_nvfp4() needs for these tensors. It does not depend on data.
// Throws what gemm_nvfp4() would throw, the workspace check aside.
std::size_t gemm_nvfp4_workspace_bytes(const GemmNvfp4Tensors& tensors,
                                       const GemmNvfp4Options& options = {});

// For every l, i, j:
//
//   sum = sum over k of (a[i, k] sfa[i, k / 16]) (b[j, k] sfb[j, k / 16])
//   c[i, j] = sum global_b[j] global_a[i] + bias[j] + residual[i, j]
//
// Dequantised operands are exact, and so is the product of two codes and their scales; a product
// with a 16-bit activation may be rounded to FP32. The sum is computed in FP32. Its order is the
// kernel's own, and the same in every call with the same shapes on the same kind of GPU. Then it is
// divided by global scales of `encode` and multiplied by those of `decode`, one by one or by one
// factor. All that is in FP32, and the result is rounded once to c's dtype. So if all partial sums
// are exact in FP32 and global scales are powers of two, c is exact.
//
// A NaN scale, or a global scale that is not positive and finite, makes its results NaN.
//
// Streams, workspaces, CUDA graphs and errors are attention()'s: see attention.hpp.
void gemm_nvfp4(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options = {},
                Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
