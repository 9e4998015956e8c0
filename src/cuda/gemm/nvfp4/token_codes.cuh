// From the codes and the scale of a block to BF16 numbers, exactly.
//
// A code's magnitude selects the two bytes of its number from tables of eight that a byte
// permutation holds; another one brings the signs. One multiplication for each pair by the scale
// does the rest: a product has six significant bits at most, and none is less than 2^-10.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cstdint>

#include "common/e2m1.hpp"
#include "cuda/gemm/nvfp4/fragment.cuh"

namespace tilewright::cuda {

// One byte each of four magnitudes in BF16, from `first_code` on: bits `shift` ... of a float.
constexpr std::uint32_t magnitude_bytes(std::uint32_t first_code, int shift) {
  std::uint32_t bytes = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(e2m1_to_float(first_code + i));
    bytes |= (bits >> shift & 0xffu) << 8 * i;
  }
  return bytes;
}

// A scale of E4M3, NaN included, twice.
__device__ __forceinline__ __nv_bfloat162 scale_pair(std::uint32_t e4m3) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(e4m3), __NV_E4M3);
  return __float2bfloat162_rn(__half2float(half));
}

// Eight codes, the lowest first. A scale that is NaN makes NaN of all.
__device__ __forceinline__ uint4 dequantize_codes(std::uint32_t codes, __nv_bfloat162 scale) {
  constexpr int kHighByte = 24;
  constexpr int kLowByte = 16;
  constexpr std::uint32_t kFirstBytes = 0x5140;  // of two words by turns
  constexpr std::uint32_t kLastBytes = 0x7362;
  const std::uint32_t magnitudes = codes & 0x77777777u;
  std::uint32_t pairs[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t selected = magnitudes >> 16 * half;
    const std::uint32_t low =
        __byte_perm(magnitude_bytes(0, kLowByte), magnitude_bytes(4, kLowByte), selected);
    const std::uint32_t high =
        __byte_perm(magnitude_bytes(0, kHighByte), magnitude_bytes(4, kHighByte), selected);
    const std::uint32_t signs =
        __byte_perm(codes << 4, codes, half == 0 ? kFirstBytes : kLastBytes);
    const std::uint32_t signed_high = select_bits<0x80808080u>(signs, high);
    pairs[2 * half] = __byte_perm(low, signed_high, kFirstBytes);
    pairs[2 * half + 1] = __byte_perm(low, signed_high, kLastBytes);
  }
#pragma unroll
  for (std::uint32_t& pair : pairs) {
    const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair), scale);
    pair = reinterpret_cast<const std::uint32_t&>(product);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

}  // namespace tilewright::cuda
