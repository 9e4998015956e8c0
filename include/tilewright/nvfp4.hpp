// Block-scaled 4-bit matrices: quantising to NVFP4, dequantising NVFP4 and MXFP4, and the layouts
// of their scales. docs/nvfp4.md has the format at length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// A matrix (M, K), K a multiple of the block, in up to three tensors:
//
//   codes         (M, K / 2) e2m1x2. A code is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6, in
//                 that order. The value with the even K index is in the low four bits.
//   scales        one for each block of neighbours along K. NVFP4: blocks of 16, e4m3, not
//                 negative.
//                 MXFP4: blocks of 32, e8m0. In one of two layouts, below.
//   global_scale  (1) fp32, of the whole matrix, in one of two senses, below. NVFP4 only.
//
// Codes and linear scales are contiguous along K; their rows may lie any distance apart. An output
// of a call below may share no byte with an input or another output.

// Where the scale of row r and block j lies; J = K / block.
enum class ScaleLayout : std::uint8_t {
  linear,    // (M, J): at [r, j]
  swizzled,  // (M up to a multiple of 128, J up to one of 4), contiguous: at byte
             // ((r / 128) ceil(J / 4) + j / 4) 512 + (r % 32) 16 + (r / 32 % 4) 4 + j % 4.
             // What cuBLAS, CUTLASS and FlashInfer read. Bytes of no block are 0.
};

// The shape of a swizzled scale tensor for `rows` rows of `blocks` blocks.
constexpr std::array<std::int64_t, 2> swizzled_scale_shape(std::int64_t rows, std::int64_t blocks) {
  return {(rows + 127) / 128 * 128, (blocks + 3) / 4 * 4};
}

// The sense of a global scale g. Both are in use: ask where a scale comes from. No call assumes
// one, since the wrong one gives values that are wrong by a factor of g^2.
enum class GlobalScale : std::uint8_t {
  encode,  // value = code * scale / g: compressed-tensors, FlashInfer's and vLLM's quantisers
  decode,  // value = code * scale * g: ModelOpt
};

// Either global_scale is given, or it is computed and written to computed_global_scale.
struct QuantizeNvfp4Tensors {
  ConstTensorView x;  // (M, K) fp32, fp16 or bf16; K contiguous, a multiple of 16
  TensorView codes;
  TensorView scales;
  std::optional<ConstTensorView> global_scale = std::nullopt;
  std::optional<TensorView> computed_global_scale = std::nullopt;
};

struct QuantizeNvfp4Options {
  ScaleLayout scale_layout = ScaleLayout::linear;
  std::optional<GlobalScale> global_scale_kind = std::nullopt;  // must be given
};

// Every operation is rounded to FP32, to nearest even; e4m3() and e2m1() round to nearest even and
// saturate. The source is the quantiser of the NVFP4 article by NVIDIA; min() and max() are guards.
//
//   amax = the largest finite |x| of the matrix
//   g    = min(2688 / amax, FLT_MAX)   as encode scale, where not given; 1 where amax is 0
//          max(amax / 2688, FLT_MIN)   as decode scale, likewise           (2688 = 6 * 448)
//   e    = g                           of an encode scale
//          min(1 / g, FLT_MAX)         of a decode scale
//   for each block of 16:
//     scale = e4m3(max |x| / 6 * e)
//     m     = min(e / max(scale, 1e-12), FLT_MAX)
//     code  = e2m1(x * m), with the sign of x
//
// A block of zeros has scale 0 and codes +-0. A block too small for the smallest scale, 2^-9, also
// has scale 0: it dequantises to zeros, whatever its codes. An infinity becomes its block's largest
// value, +-6 with scale 448. A NaN makes the scale of its block NaN, and no other; if g is not
// positive and finite, all scales are NaN. Codes under a NaN scale are +-6.
//
// CPU and GPU give the same bytes. If g is computed, the call reads x twice, and on a GPU it needs
// a workspace. On CUDA tensors the work is queued on `stream` and the call returns at once; it
// neither allocates nor synchronises and can be captured in a CUDA graph. There each row of x must
// be aligned to 16 bytes and each row of codes to 8. Throws tilewright::Error, with nothing
// written, when an argument is wrong or the device is not supported.
void quantize_nvfp4(const QuantizeNvfp4Tensors& tensors, const QuantizeNvfp4Options& options,
                    Workspace workspace = {}, Stream stream = nullptr);

// The bytes of workspace that quantize_nvfp4() needs. It does not depend on data. Throws what
// quantize_nvfp4() would throw, the workspace check aside.
std::size_t quantize_nvfp4_workspace_bytes(const QuantizeNvfp4Tensors& tensors,
                                           const QuantizeNvfp4Options& options);

struct DequantizeNvfp4Tensors {
  ConstTensorView codes;
  ConstTensorView scales;  // e4m3: NVFP4; e8m0: MXFP4
  TensorView out;          // (M, K) fp32, fp16 or bf16; K contiguous
  std::optional<ConstTensorView> global_scale = std::nullopt;  // 1 when absent, as it is of MXFP4
};

struct DequantizeNvfp4Options {
  ScaleLayout scale_layout = ScaleLayout::linear;
  std::optional<GlobalScale> global_scale_kind = std::nullopt;  // must be given with global_scale
};

// out = code * scale, which is exact in FP32 (of MXFP4, below 2^128), then / g or * g rounded to
// FP32, then rounded to out's dtype. A NaN scale, or a g that is not positive and finite, gives
// NaN. All else is as in quantize_nvfp4(); on CUDA out must be aligned to 16 bytes, codes to 8.
void dequantize_nvfp4(const DequantizeNvfp4Tensors& tensors,
                      const DequantizeNvfp4Options& options = {}, Stream stream = nullptr);

// Converts e4m3 or e8m0 scales between the layouts. `linear` is (M, J), `swizzled` has the shape
// swizzled_scale_shape(M, J). Swizzling writes 0 to the bytes that belong to no block; unswizzling
// ignores them.
void swizzle_scales(const ConstTensorView& linear, const TensorView& swizzled,
                    Stream stream = nullptr);
void unswizzle_scales(const ConstTensorView& swizzled, const TensorView& linear,
                      Stream stream = nullptr);

}  // namespace tilewright
