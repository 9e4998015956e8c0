// Global scales in the epilogue. A sum's factors (both global scales and 2^7) are first multiplied
// with each other. If their product is a normal FP32 number, the sum is multiplied by it once, in
// finish_sum(); otherwise the sum is scaled step by step. All paths of the epilogue call
// finish_sum(), so that C has the same bits whichever path writes it.
#pragma once

#include <limits>

#include "common/gemm_epilogue.hpp"
#include "cuda/gemm/nvfp4/fragment.cuh"
#include "ops/gemm_nvfp4/params.hpp"

namespace tilewright::cuda {

// The global scales of one operand, in one GEMM of the batch.
class GlobalScales {
 public:
  __device__ GlobalScales(const RowScales& scales, int batch)
      : data_(scales.data == nullptr ? nullptr : scales.data + batch * scales.stride.batch),
        row_stride_(scales.stride.row),
        kind_(scales.kind) {}

  __device__ float load(int row) const {
    return data_ == nullptr ? 1.0f : data_[row * row_stride_];
  }

  // The number to multiply by, rounded; NaN if the scale is not positive and finite.
  __device__ float multiplier(float scale) const {
    const float by = kind_ == GlobalScale::encode ? __frcp_rn(scale) : scale;
    return nvfp4::is_positive_and_finite(scale) ? by : std::numeric_limits<float>::quiet_NaN();
  }

  __device__ float apply(float sum, float scale) const { return scale_globally(sum, scale, kind_); }

 private:
  const float* data_;
  std::int64_t row_stride_;
  GlobalScale kind_;
};

// The product of all that a sum is multiplied by.
__device__ inline float sum_factor(float multiplier_a, float multiplier_b) {
  return multiplier_b * (multiplier_a * (1.0f / kWeightFactor));
}

// If a factor is not normal, sums are scaled step by step instead.
__device__ inline bool is_normal(float factor) {
  return factor >= std::numeric_limits<float>::min() && factor <= std::numeric_limits<float>::max();
}

// Finishes a sum by a normal factor.
__device__ inline float finish_sum(float sum, float factor, float bias) {
  return fmaf(sum, factor, bias);
}

}  // namespace tilewright::cuda
