// The checked form of a call of gemm_nvfp4(): what every kernel receives.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"
#include "ops/matrix_views.hpp"
#include "tilewright/gemm.hpp"

namespace tilewright {

// A global scale for each row, or with strides of 0 one for all. Null: 1.
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

  const void* a = nullptr;  // values, or codes where a_dtype is e2m1x2
  DType a_dtype = DType::bf16;
  MatrixStrides a_stride = {};
  Scales<const std::uint8_t> sfa = {};  // of the first product of the batch; null where a has none
  std::int64_t sfa_batch_stride = 0;
  RowScales global_a = {};

  // Codes and their scales, or a packed weight: its tiles without sfb. A batch stride is in bytes,
  // 0 where all of the batch share the weight.
  const std::uint8_t* b = nullptr;
  bool b_is_packed = false;
  bool b_is_constant = false;  // and was waited for
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

  bool batch_invariant = false;
  int multiprocessors = 0;  // of the GPU that the plan and the workspace are for
  void* workspace = nullptr;
};

}  // namespace tilewright
