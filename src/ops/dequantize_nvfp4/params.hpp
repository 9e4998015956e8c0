// A checked call of dequantize_nvfp4(), as its kernels receive it.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

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

}  // namespace tilewright
