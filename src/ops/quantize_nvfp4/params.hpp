// A checked call of quantize_nvfp4(), as its kernels receive it.
#pragma once

#include <cstdint>

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
      nullptr;              // on a GPU: kMaxPartials words, if the global scale is computed
  int multiprocessors = 0;  // of the GPU
};

// The most partial maxima of the GPU's quantiser, one for each thread block.
inline constexpr int kMaxPartials = 1024;

}  // namespace tilewright
