// NVFP4 weights prepacked for gemm_nvfp4(): codes and scales in the order in which the threads of a
// GPU kernel use them. docs/nvfp4.md has the layout, byte by byte.
#pragma once

#include <array>
#include <cstdint>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// The version of the layout. A packed weight does not say which it has: whoever stores one stores
// this number beside it.
inline constexpr int kNvfp4WeightLayout = 1;

// The shape of a packed weight (N, K) = (rows, columns): tiles of 64 rows, and the bytes of a row
// of tiles, which have 64 columns and 2304 bytes each. K is padded to a multiple of 128.
constexpr std::array<std::int64_t, 2> packed_nvfp4_weight_shape(std::int64_t rows,
                                                                std::int64_t columns) {
  return {(rows + 63) / 64, (columns + 127) / 128 * 2 * 2304};
}

// Either all three have the batch L or none has.
struct PrepackNvfp4WeightTensors {
  ConstTensorView codes;   // ([L,] N, K / 2) e2m1x2, K a multiple of 16; contiguous along K
  ConstTensorView scales;  // e4m3: linear ([L,] N, K / 16), contiguous along K; or swizzled
                           // ([L,] N up to a multiple of 128, K / 16 up to one of 4), contiguous
  TensorView packed;       // ([L,] packed_nvfp4_weight_shape(N, K)) u8; each weight contiguous
};

// Packs a weight, once, for any number of products. What is beyond N and K becomes zeros. Values
// stay what they are, signs of zeros included, in a form without negative or zero scales: the sign
// of a negative scale moves to its codes, and codes under a scale of zero become zeros of their
// sign.
//
// CPU and GPU write the same bytes. On CUDA tensors the work is queued on `stream` and the call
// returns at once; it needs no workspace, neither allocates nor synchronises, and can be captured
// in a CUDA graph. `packed` must be aligned to 16 bytes there, a batch stride included; it may
// share no byte with codes or scales. Throws tilewright::Error, with nothing written, when an
// argument is wrong or the device is not supported.
void prepack_nvfp4_weight(const PrepackNvfp4WeightTensors& tensors,
                          ScaleLayout scale_layout = ScaleLayout::linear, Stream stream = nullptr);

struct UnpackNvfp4WeightTensors {
  ConstTensorView packed;
  TensorView codes;
  TensorView scales;
};

// The inverse, shapes as above: codes and scales that dequantise to the same values. Under scales
// that are neither negative nor zero they are the bytes that were packed; another scale comes back
// without its sign, with the codes changed as prepack_nvfp4_weight() says. Bytes of swizzled scales
// that belong to no block are 0. Otherwise as prepack_nvfp4_weight().
void unpack_nvfp4_weight(const UnpackNvfp4WeightTensors& tensors,
                         ScaleLayout scale_layout = ScaleLayout::linear, Stream stream = nullptr);

}  // namespace tilewright
