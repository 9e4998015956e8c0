// The checked forms of the calls of tilewright/nvfp4.hpp and nvfp4_weight.hpp: what every backend
// receives.
#pragma once

#include <cstdint>

#include "common/nvfp4_weight_tile.hpp"
#include "common/scale_layout.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

struct QuantizeNvfp4Params {
  const void* x = nullptr;
  DType dtype = DType::bf16;  // of x
  std::int64_t x_stride = 0;  // of rows
  int rows = 0;
  int blocks = 0;  // of a row

  std::uint8_t* codes = nullptr;
  std::int64_t codes_stride = 0;
  Scales<std::uint8_t> scales;
  int scale_rows = 0;  // with the padding of swizzled scales
  int scale_blocks = 0;

  const float* global_scale = nullptr;     // null: computed
  float* computed_global_scale = nullptr;  // null: given
  GlobalScale global_scale_kind = GlobalScale::encode;

  std::uint32_t* workspace =
      nullptr;              // GPU: kMaxPartials words, where the global scale is computed
  int multiprocessors = 0;  // of the GPU
};

struct DequantizeNvfp4Params {
  const std::uint8_t* codes = nullptr;
  std::int64_t codes_stride = 0;
  Scales<const std::uint8_t> scales;
  bool is_mxfp4 = false;
  int rows = 0;
  int blocks = 0;  // of a row

  void* out = nullptr;
  DType dtype = DType::bf16;  // of out
  std::int64_t out_stride = 0;

  const float* global_scale = nullptr;  // null: 1
  GlobalScale global_scale_kind = GlobalScale::encode;
};

// `rows` rows of `blocks` scales, from one layout to the other.
struct ConvertScalesParams {
  Scales<const std::uint8_t> from;
  Scales<std::uint8_t> to;
  int rows = 0;
  int blocks = 0;
};

struct PrepackWeightParams {
  UnpackedWeight<const std::uint8_t> weight;
  std::uint8_t* packed = nullptr;
  std::int64_t packed_batch_stride = 0;
};

struct UnpackWeightParams {
  const std::uint8_t* packed = nullptr;
  std::int64_t packed_batch_stride = 0;
  UnpackedWeight<std::uint8_t> weight;
};

// Of the GPU's quantiser: partial maxima of a matrix, one a thread block.
inline constexpr int kMaxPartials = 1024;

}  // namespace tilewright
