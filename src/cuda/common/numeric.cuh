// Scalar arithmetic shared by the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>
#include <limits>

namespace tilewright::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// 2^x in one MUFU instruction: the relative error is about 2^-22, denormal results become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Multiplied with a score, it gives the score's exponent in base 2. A scale of 0 becomes the
// smallest normal number: a masked score stays -infinity, and all others have the exponential 1.
__device__ __forceinline__ float scale_to_log2(float scale) {
  return fmaxf(scale, FLT_MIN) * kLog2e;
}

// LSE = m + ln(l) of a row whose maximum raw score is `max_score`: -infinity if the row saw no key,
// NaN if a score is NaN.
__device__ __forceinline__ float log_sum_exp(float max_score, float sum, float scale) {
  return sum == 0.0f ? kMinusInf : fmaf(max_score, scale, logf(sum));
}

// Eight neighbouring BF16 values, 16 bytes, as floats.
struct Float8 {
  float value[8];
};

__device__ __forceinline__ Float8 load_bf16x8(const __nv_bfloat16* source) {
  const uint4 raw = *reinterpret_cast<const uint4*>(source);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Float8 result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // a BF16 value is the upper half of its float
    result.value[2 * i] = __uint_as_float(words[i] << 16);
    result.value[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return result;
}

// Two values rounded to BF16, or FP16, in one word.
__device__ __forceinline__ std::uint32_t pack_bf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

__device__ __forceinline__ std::uint32_t pack_fp16x2(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Four values rounded to E4M3, the first in the lowest byte. Beyond +-448 they saturate; a NaN
// becomes 0x7f.
__device__ __forceinline__ std::uint32_t pack_e4m3x4(float a, float b, float c, float d) {
  std::uint32_t packed;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

}  // namespace tilewright::cuda
