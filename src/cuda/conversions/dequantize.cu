// dequantize_nvfp4: a thread takes eight values, 4 bytes of codes, of NVFP4 or MXFP4.
//
//   load codes, scale --> value, rounded to FP32 --> to the output's type --> store 16 or 32 bytes
//
// Source    tilewright/nvfp4.hpp has the arithmetic.
// Tiles     A warp reads 128 bytes of codes and writes 512 of BF16, both in whole sectors.
// SMEM      none.
// Registers 32 at most where the output has 16 bits; kThreads says why.
// Limits    Each row of `out` is aligned to 16 bytes, each row of codes to 8.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/nvfp4_recipe.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/conversions/block_tiles.cuh"
#include "ops/dequantize_nvfp4/kernels.hpp"

namespace tilewright::cuda {
namespace dequantize_nvfp4 {

constexpr int kValues = 8;  // of a group, which a thread takes in one step
// Blocks of 128 threads with 32 registers each fit beside a block of `nvfp4` for few tokens (640
// threads with 96 each), so that they are there when the launch ahead ends.
constexpr int kThreads = 128;

// Two neighbouring values, neither of them NaN, as they lie in memory.
__device__ float2 to_pair(float low, float high, float*) { return make_float2(low, high); }
__device__ std::uint32_t to_pair(float low, float high, __nv_bfloat16*) {
  return pack_bf16x2(low, high);
}
__device__ std::uint32_t to_pair(float low, float high, __half*) { return pack_fp16x2(low, high); }

// Two NaNs, with the same bits as the CPU kernel's.
__device__ float2 nan_pair(float*) {
  return make_float2(__uint_as_float(0x7fc00000u), __uint_as_float(0x7fc00000u));
}
__device__ std::uint32_t nan_pair(__nv_bfloat16*) { return 0x7fc07fc0u; }
__device__ std::uint32_t nan_pair(__half*) { return 0x7e007e00u; }

// Writes eight values. decode(code) is a code's value if its block's scale is not NaN.
template <typename T, typename Decode>
__device__ void store_eight(std::uint32_t codes, float scale, Decode&& decode, T* out) {
  alignas(uint4) decltype(nan_pair(out)) pairs[kValues / 2];
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) {
    pairs[i] = scale != scale ? nan_pair(out)
                              : to_pair(decode(codes >> 8 * i), decode(codes >> (8 * i + 4)), out);
  }
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(pairs) / sizeof(uint4)); ++i) {
    reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(pairs)[i];
  }
}

template <typename T, bool kIsMxfp4>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 65536 / (32 * kThreads) : 1)
    dequantize(const __grid_constant__ DequantizeNvfp4Params p, int log2_lanes) {
  constexpr int kGroups = (kIsMxfp4 ? nvfp4::kMxBlock : nvfp4::kBlock) / kValues;  // of a block
  let_next_launch_start();  // the next launch waits for this one's end by itself
  wait_for_launch_before();
  const float global_scale = p.global_scale != nullptr ? *p.global_scale : 1.0f;

  const BlockPosition first(log2_lanes, kThreads);
  for (int group = first.column; group < p.blocks * kGroups; group += first.column_step) {
    for (int row = first.row; row < p.rows; row += first.row_step) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(
          p.codes + row * p.codes_stride + std::int64_t{group} * (kValues / 2));
      const float scale =
          nvfp4::decode_scale(p.scales.at(row, group / kGroups), kIsMxfp4, global_scale);
      T* const out = static_cast<T*>(p.out) + row * p.out_stride + std::int64_t{group} * kValues;
      if (p.global_scale == nullptr) {
        store_eight(
            codes, scale, [&](std::uint32_t code) { return e2m1_to_float(code) * scale; }, out);
      } else {
        store_eight(
            codes, scale,
            [&](std::uint32_t code) {
              return nvfp4::decode(code, scale, global_scale, p.global_scale_kind);
            },
            out);
      }
    }
  }
}

template <typename T>
void launch_dequantize(const DequantizeNvfp4Params& p, Stream stream) {
  constexpr int kMaxGrid = 1 << 13;
  const int block = p.is_mxfp4 ? nvfp4::kMxBlock : nvfp4::kBlock;
  const BlockTiles tiles(p.rows, p.blocks * (block / kValues), kMaxGrid, {.threads = kThreads});
  constexpr LaunchOptions beside{.may_start_early = true};
  if (p.is_mxfp4) {
    launch_with<dequantize<T, true>>(beside, tiles.grid, kThreads, 0, stream, p, tiles.log2_lanes);
  } else {
    launch_with<dequantize<T, false>>(beside, tiles.grid, kThreads, 0, stream, p, tiles.log2_lanes);
  }
}

}  // namespace dequantize_nvfp4

void launch_dequantize_nvfp4(const DequantizeNvfp4Params& p, Stream stream) {
  switch (p.dtype) {
    case DType::fp32:
      return dequantize_nvfp4::launch_dequantize<float>(p, stream);
    case DType::fp16:
      return dequantize_nvfp4::launch_dequantize<__half>(p, stream);
    case DType::bf16:
      return dequantize_nvfp4::launch_dequantize<__nv_bfloat16>(p, stream);
    default:  // refused by the checks
      return;
  }
}

}  // namespace tilewright::cuda
