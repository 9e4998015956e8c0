// Packed NVFP4 weights for gemm_nvfp4(): codes and scales in the order in which the threads of a
// GPU kernel use them. docs/nvfp4.md has the layout, byte by byte.
#pragma once

#include <array>
#include <cstdint>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// The version of the layout. A packed weight does not contain it: whoever stores a packed weight
// stores this number beside it.
inline constexpr int kNvfp4WeightLayout = 1;

// The shape of a packed weight (N, K): the number of tile rows, of 64 rows each, and the bytes of
// one. A tile has 64 columns and 2304 bytes; K is padded to a multiple of 128.
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

// Packs a weight, once, for any number of GEMMs. Padding beyond N and K becomes zeros. Values stay
// what they are, signs of zeros included. The packed form has no negative or zero scales: a
// negative scale's sign moves to its codes, and codes under a scale of zero become zeros of their
// sign.
//
// CPU and GPU write the same bytes. On CUDA tensors the work is queued on `stream` and the call
// returns at once; it needs no workspace, neither allocates nor synchronises, and can be captured
// in a CUDA graph. `packed` and its batch stride must be aligned to 16 bytes there. It may share no
// byte with codes or scales. Throws tilewright::Error, with nothing written, when an argument is
// wrong or the device is not supported.
void prepack_nvfp4_weight(const PrepackNvfp4WeightTensors& tensors,
                          ScaleLayout scale_layout = ScaleLayout::linear, Stream stream = nullptr);

struct UnpackNvfp4WeightTensors {
  ConstTensorView packed;
  TensorView codes;
  TensorView scales;
};

// The inverse, with shapes as above: codes and scales that dequantise to the same values. Under a
// scale that is neither negative nor zero they are the bytes that were packed; any other scale
// comes back without its sign, and its codes as prepack_nvfp4_weight() changed them. Bytes of
// swizzled scales that belong to no block are 0. All else is as in prepack_nvfp4_weight().
void unpack_nvfp4_weight(const UnpackNvfp4WeightTensors& tensors,
                         ScaleLayout scale_layout = ScaleLayout::linear, Stream stream = nullptr);

}  // namespace tilewright
