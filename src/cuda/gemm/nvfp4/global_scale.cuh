// Global scales in an epilogue: in one multiplication with all else, or quotients as IEEE has them,
// without the code of a division.
#pragma once

#include <limits>

#include "common/nvfp4_recipe.hpp"
#include "gemm_params.hpp"

namespace tilewright::cuda {

// The global scales of one operand, in one product of the batch.
class GlobalScales {
 public:
  // Of one scale. NaN where it is not positive and finite, so that all it enters becomes NaN.
  struct Factor {
    float scale;
    float inverse;  // of a divisor: its reciprocal
    float power;    // what both sides of the quotient are multiplied with, to stay normal numbers
  };

  __device__ GlobalScales(const RowScales& scales, int batch)
      : data_(scales.data == nullptr ? nullptr : scales.data + batch * scales.stride.batch),
        row_stride_(scales.stride.row),
        divides_(scales.kind == GlobalScale::encode) {}

  __device__ float load(int row) const {
    return data_ == nullptr ? 1.0f : data_[row * row_stride_];
  }

  __device__ Factor factor(float scale) const {
    if (!nvfp4::is_positive_and_finite(scale)) {
      constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
      return {kNaN, kNaN, 1.0f};
    }
    const float power = !divides_          ? 1.0f
                        : scale < 0x1p-90f ? 0x1p60f
                        : scale > 0x1p90f  ? 0x1p-60f
                                           : 1.0f;
    return {scale * power, __frcp_rn(scale * power), power};
  }

  // What to multiply by, rounded. NaN where factor() has it.
  __device__ float multiplier(float scale) const {
    const float by = divides_ ? __frcp_rn(scale) : scale;
    return nvfp4::is_positive_and_finite(scale) ? by : std::numeric_limits<float>::quiet_NaN();
  }

  // Divides or multiplies each sum i by factor_of(i). All kSums of them together: one branch. A
  // quotient by way of the reciprocal may be off by a bit; what it leaves over is exact, and puts
  // it right (Markstein, 1990).
  template <int kSums, typename Sums, typename FactorOf>
  __device__ void apply(Sums& sums, FactorOf&& factor_of) const {
    if (data_ == nullptr) {
      return;
    }
    if (!divides_) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] *= factor_of(i).scale;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const Factor by = factor_of(i);
      const float dividend = sums[i] * by.power;
      const float quotient = dividend * by.inverse;
      const float left_over = fmaf(-quotient, by.scale, dividend);
      const float corrected = fmaf(left_over, by.inverse, quotient);
      sums[i] = fabsf(quotient) <= std::numeric_limits<float>::max() ? corrected : quotient;
    }
  }

 private:
  const float* data_;
  std::int64_t row_stride_;
  bool divides_;
};

}  // namespace tilewright::cuda
