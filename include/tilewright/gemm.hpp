// Matrix products with NVFP4 weights: of BF16 or FP16 activations (W4A16), or of activations that
// are NVFP4 too (W4A4). nvfp4.hpp has the format.
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

// C = A B^T, plus a bias and a residual where given. Shapes: M rows of A (tokens), N rows of B
// (output features), K summed over, L products side by side. The batch L leads, and either all
// matrices have it or none has:
//
//   a     ([L,] M, K) bf16 or fp16, or the codes of NVFP4: ([L,] M, K / 2) e2m1x2
//   b     ([L,] N, K / 2) e2m1x2, the codes of the weight; or u8, the weight packed by
//         prepack_nvfp4_weight(): ([L,] packed_nvfp4_weight_shape(N, K)), N being c's
//   sfb   the e4m3 scales of b's codes: linear ([L,] N, K / 16), or swizzled
//         ([L,] N up to a multiple of 128, K / 16 up to one of 4). Absent where b is packed
//   sfa   those of a, likewise, where a is NVFP4; else absent
//   c     ([L,] M, N) bf16, fp16 or fp32
//
//   global_scale_a, global_scale_b
//         fp32: (1) of the whole tensor, or ([L,] M) and ([L,] N), one for each row. 1 when absent.
//         Only with a's codes has a one
//   bias      (N), the dtype of c: added to every row
//   residual  ([L,] M, N), the dtype of c. May be c itself
//
// K is a multiple of 16. Along K, and N of c and residual, elements are contiguous; a matrix of
// swizzled scales and a packed weight are contiguous as a whole. Every other stride is free, in
// elements: tensors (M, K, L) with the batch outermost in memory are these with their dimensions
// permuted, and a weight that all of the batch shares has the batch stride 0. All sizes are at
// least 1. All tensors live on one device, and on a GPU rows of a, b, c and residual are aligned to
// 16 bytes, their strides not negative: contiguous codes, of a or b, take a K that is a multiple of
// 32. c may not share a byte with an input, but for a residual that is c: the same address, the
// same strides. Where it does, the call is refused. It may lie in an input's gaps: c and a may be
// columns of one buffer.
//
// Of that the kernels take, c being any of its dtypes:
//
//   nvfp4         Hopper   a bf16, fp16 or NVFP4   b codes, packed  N and K multiples of 16
//   nvfp4_simple  Hopper   a bf16                  b codes          N a multiple of 16, K of 64
//   cpu           any CPU  a bf16, fp16 or NVFP4   b codes, packed  any N, K a multiple of 16
//
// nvfp4 packs a weight that is given as codes into the workspace, in each call: one that is used
// again is better packed once. On a GPU L x M x N x K, with M, N and K up to multiples of 8, 64 and
// 128, is less than 2^47.
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
  ScaleLayout sfb_layout = ScaleLayout::linear;  // where b is codes
  // Each must be given where its global scale is.
  std::optional<GlobalScale> global_scale_a_kind = std::nullopt;
  std::optional<GlobalScale> global_scale_b_kind = std::nullopt;
  // b is packed, and all that wrote it was waited for before this call: by the host, as after
  // loading a model, or by a call on this stream that did not say so. Its first tiles are then read
  // while launches before on the stream are still at work.
  bool b_is_constant = false;
  // A row of c is the same bits whatever M and L are, and whatever the other rows hold.
  bool batch_invariant = false;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that gemm_nvfp4() will need for these tensors. Looks at no data. Throws
// what gemm_nvfp4() would throw, the workspace check aside.
std::size_t gemm_nvfp4_workspace_bytes(const GemmNvfp4Tensors& tensors,
                                       const GemmNvfp4Options& options = {});

// For every l, i, j:
//
//   sum = sum over k of (a[i, k] sfa[i, k / 16]) (b[j, k] sfb[j, k / 16])
//   c[i, j] = sum global_b[j] global_a[i] + bias[j] + residual[i, j]
//
// Dequantised operands and the product of two codes and their scales are exact; a product with an
// activation of 16 bits may round to FP32. The sum is added up in FP32, in an order that is the
// kernel's own and the same in every call with the same shapes on such a GPU. A global scale of
// `encode` divides, one of `decode` multiplies, both one after the other or as one factor; that and
// what follows is FP32, and the result is rounded once to c's dtype. So where all partial sums are
// exact in FP32 and global scales are powers of two, c is exact.
//
// A NaN scale, or a global scale that is not positive and finite, makes all that it enters NaN.
//
// Streams, workspaces, CUDA graphs and errors are attention()'s: see attention.hpp.
void gemm_nvfp4(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options = {},
                Workspace workspace = {}, Stream stream = nullptr);

// The steps that lead there, of docs/worklog/gemm-ladder.md: C = A B^T of BF16 matrices a (M, K),
// b (N, K) and c (M, N) on a GPU, N a multiple of 16 and K of 64. Rows may lie any distance apart.
struct GemmBf16Tensors {
  ConstTensorView a;
  ConstTensorView b;
  TensorView c;
};

// Summed in FP32, rounded once. `kernel` is a name of gemm_bf16's table, or "auto". Needs no
// workspace; otherwise as gemm_nvfp4().
void gemm_bf16(const GemmBf16Tensors& tensors, std::string_view kernel = "auto",
               Stream stream = nullptr);

}  // namespace tilewright
