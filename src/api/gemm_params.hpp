// The checked forms of the calls of tilewright/gemm.hpp: what every backend receives.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"
#include "tilewright/gemm.hpp"

namespace tilewright {

// Strides in elements, 0 where a dimension is absent or never stepped over.
struct MatrixStrides {
  std::int64_t batch = 0;
  std::int64_t row = 0;
};

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

struct GemmBf16Params {
  int m = 0;
  int n = 0;
  int k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::int64_t a_stride = 0;  // of rows
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;
};

}  // namespace tilewright
