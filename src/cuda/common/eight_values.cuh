// Eight neighbouring values of a row, which a thread loads and stores as vectors of 16 bytes, and
// of which it computes in FP32. Rows are aligned to 16 bytes.
#pragma once

#include "cuda/common/numeric.cuh"

namespace tilewright::cuda {

__device__ __forceinline__ Float8 load_eight(const __nv_bfloat16* source) {
  return load_bf16x8(source);
}

__device__ __forceinline__ Float8 load_eight(const __half* source) {
  const uint4 raw = *reinterpret_cast<const uint4*>(source);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Float8 result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
    result.value[2 * i] = pair.x;
    result.value[2 * i + 1] = pair.y;
  }
  return result;
}

__device__ __forceinline__ Float8 load_eight(const float* source) {
  const float4 low = reinterpret_cast<const float4*>(source)[0];
  const float4 high = reinterpret_cast<const float4*>(source)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// Rounded to the type of `target`, which is not looked at. Any NaN becomes 0x7fff.
__device__ __forceinline__ uint4 pack_eight(const Float8& v, const __nv_bfloat16*) {
  return make_uint4(pack_bf16x2(v.value[0], v.value[1]), pack_bf16x2(v.value[2], v.value[3]),
                    pack_bf16x2(v.value[4], v.value[5]), pack_bf16x2(v.value[6], v.value[7]));
}

__device__ __forceinline__ uint4 pack_eight(const Float8& v, const __half*) {
  return make_uint4(pack_fp16x2(v.value[0], v.value[1]), pack_fp16x2(v.value[2], v.value[3]),
                    pack_fp16x2(v.value[4], v.value[5]), pack_fp16x2(v.value[6], v.value[7]));
}

template <typename Half>
__device__ __forceinline__ void store_eight(const Float8& v, Half* target) {
  *reinterpret_cast<uint4*>(target) = pack_eight(v, target);
}

__device__ __forceinline__ void store_eight(const Float8& v, float* target) {
  reinterpret_cast<float4*>(target)[0] =
      make_float4(v.value[0], v.value[1], v.value[2], v.value[3]);
  reinterpret_cast<float4*>(target)[1] =
      make_float4(v.value[4], v.value[5], v.value[6], v.value[7]);
}

}  // namespace tilewright::cuda
