// A checked call of gemm_nvfp4(), as its kernels receive it.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"
#include "ops/matrix_views.hpp"
#include "tilewright/gemm_nvfp4.hpp"

namespace tilewright {

// A global scale for each row or, with strides of 0, one for all. Null means 1.
struct RowScales {
  const float* data = nullptr;
  MatrixStrides stride = {};
  GlobalScale kind = GlobalScale::encode;
};

struct GemmNvfp4Params {
  int m = 0;
  int n = 0;
  int k = 0;
  int l = 1;

  const void* a = nullptr;  // values, or codes if a_dtype is e2m1x2
  DType a_dtype = DType::bf16;
  MatrixStrides a_stride = {};
  Scales<const std::uint8_t> sfa = {};  // of the batch's first GEMM; null if a has none
  std::int64_t sfa_batch_stride = 0;
  RowScales global_a = {};

  // Codes with scales in sfb, or the tiles of a packed weight without. A batch stride is in bytes,
  // and 0 if the whole batch shares the weight.
  const std::uint8_t* b = nullptr;
  bool b_is_packed = false;
  bool b_is_constant = false;  // GemmNvfp4Options::b_is_constant
  MatrixStrides b_stride = {};
  Scales<const std::uint8_t> sfb = {};
  std::int64_t sfb_batch_stride = 0;
  RowScales global_b = {};

  void* c = nullptr;
  DType c_dtype = DType::bf16;
  MatrixStrides c_stride = {};
  const void* bias = nullptr;  // of dtype c_dtype, as the residual; null: none
  std::int64_t bias_stride = 0;
  const void* residual = nullptr;
  MatrixStrides residual_stride = {};

  void* workspace = nullptr;
};

}  // namespace tilewright
