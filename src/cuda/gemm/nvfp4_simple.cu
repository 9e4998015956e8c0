// nvfp4_simple: gemm_swizzled with NVFP4 weights.
//
// New here: B is read as codes and scales, 9 bytes for 16 values, and becomes BF16 in registers on
// its way to SMEM. A code's bits are put where BF16 has its sign, exponent and mantissa: that
// number is the value times 2^-126. It is multiplied once by the scale times 2^106, which leaves
// the value times the scale times 2^-20. All of that is exact up to the sum, and the epilogue
// removes the 2^-20.
//
//   for each tile of K:
//     load A -> sA | load codes, scale, multiply -> sB | ldmatrix | mma: C += sA sB^T
//     every 512 columns: total += C, C = 0
//   total * 2^20 * global scale + bias + residual -> C's dtype
//
// Source    the NVFP4 article by NVIDIA, part 2: "NVFP4 and scale factors";
//           tilewright/gemm_nvfp4.hpp.
// Tiles     Br = Bc = Bk = 64; 128 threads, four warps of 32 x 32 of C.
// SMEM      sA, sB 64 x 64 BF16: 16 KB.
// Registers 32 accumulators and 32 totals a thread.
// Limits    Activations are BF16, K is a multiple of 64, rows are aligned to 16 bytes. Each block
//           dequantises B's tiles anew, and nothing runs during a block's loads.
// Worklog   docs/worklog/gemm-ladder.md
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/gemm_epilogue.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/gemm/mma_tile.cuh"
#include "ops/gemm_nvfp4/kernels.hpp"

namespace tilewright::cuda {
namespace nvfp4_simple {

constexpr float kScaleFactor = 0x1p106f;
constexpr float kSumFactor = 0x1p20f;
constexpr int kRowBlocks = kMmaTile / nvfp4::kBlock;
constexpr int kColumnsOfSum = 512;

struct SharedStorage {
  SwizzledTile sA;
  SwizzledTile sB;
};
static_assert(sizeof(SharedStorage) == 16 * 1024);

// Returns the values of a byte's two codes times 2^-126 times `scale`, in BF16.
__device__ __forceinline__ std::uint32_t dequantize_pair(std::uint32_t byte, __nv_bfloat162 scale) {
  const std::uint32_t bits = (byte << 12 & 0x8000u) | (byte << 6 & 0x01c0u) |
                             (byte << 24 & 0x80000000u) | (byte << 18 & 0x01c00000u);
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(bits), scale);
  return reinterpret_cast<const std::uint32_t&>(product);
}

__device__ __forceinline__ uint4 dequantize_vector(std::uint32_t codes, __nv_bfloat162 scale) {
  return make_uint4(dequantize_pair(codes, scale), dequantize_pair(codes >> 8, scale),
                    dequantize_pair(codes >> 16, scale), dequantize_pair(codes >> 24, scale));
}

// Dequantises rows column0, column0 + 1, ... of B from column k0 on, times 2^-20. A thread does a
// block of 16 values at a time. Rows from N on become zeros.
__device__ __forceinline__ void dequantize_tile(SwizzledTile& tile, const GemmNvfp4Params& p,
                                                int batch, int column0, int k0) {
  const std::uint8_t* const b = p.b + batch * p.b_stride.batch;
  Scales<const std::uint8_t> scales = p.sfb;
  scales.data += batch * p.sfb_batch_stride;
#pragma unroll
  for (int i = threadIdx.x; i < kMmaTile * kRowBlocks; i += kMmaThreads) {
    const int row = i / kRowBlocks;
    const int block = i % kRowBlocks;
    uint2 codes = make_uint2(0, 0);
    float scale = 0.0f;
    if (column0 + row < p.n) {
      codes = *reinterpret_cast<const uint2*>(b + (column0 + row) * p.b_stride.row +
                                              (k0 / 2 + block * nvfp4::kBlock / 2));
      scale = e4m3_to_float(scales.at(column0 + row, k0 / nvfp4::kBlock + block));
    }
    const __nv_bfloat162 factor = __float2bfloat162_rn(scale * kScaleFactor);  // exact
    tile.at(row, 2 * block) = dequantize_vector(codes.x, factor);
    tile.at(row, 2 * block + 1) = dequantize_vector(codes.y, factor);
  }
}

__device__ float to_float(float value) { return value; }
__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void store(float value, float& out) { out = value; }
__device__ void store(float value, __half& out) { out = __float2half_rn(value); }
__device__ void store(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }

// The epilogue of one sum.
template <typename T>
__device__ void finish(const GemmNvfp4Params& p, int batch, int row, int column, float sum) {
  float value = sum * kSumFactor;
  if (p.global_b.data != nullptr) {
    const MatrixStrides& stride = p.global_b.stride;
    value = scale_globally(value, p.global_b.data[batch * stride.batch + column * stride.row],
                           p.global_b.kind);
  }
  if (p.bias != nullptr) {
    value += to_float(static_cast<const T*>(p.bias)[column * p.bias_stride]);
  }
  const auto offset = [&](const MatrixStrides& stride) {
    return batch * stride.batch + row * stride.row + column;
  };
  if (p.residual != nullptr) {
    value += to_float(static_cast<const T*>(p.residual)[offset(p.residual_stride)]);
  }
  store(value, static_cast<T*>(p.c)[offset(p.c_stride)]);
}

template <typename T>
__global__ void __launch_bounds__(kMmaThreads)
    nvfp4_simple(const __grid_constant__ GemmNvfp4Params p, int row_tiles, int column_tiles) {
  __shared__ SharedStorage shared;
  const int column0 = blockIdx.x % column_tiles * kMmaTile;
  const int row0 = blockIdx.x / column_tiles % row_tiles * kMmaTile;
  const int batch = blockIdx.x / column_tiles / row_tiles;
  const auto* const a = static_cast<const __nv_bfloat16*>(p.a) + batch * p.a_stride.batch;

  WarpTile warp;
  for (int k0 = 0; k0 < p.k; k0 += kMmaTile) {
    load_tile(shared.sA, a, p.a_stride.row, row0, p.m, k0);
    dequantize_tile(shared.sB, p, batch, column0, k0);
    __syncthreads();
    warp.multiply(shared.sA, shared.sB);
    __syncthreads();  // no warp reads the tiles any more
    if ((k0 + kMmaTile) % kColumnsOfSum == 0) {
      warp.add_to_total();
    }
  }
  warp.for_each([&](int row, int column, float sum) {
    if (row0 + row < p.m && column0 + column < p.n) {
      finish<T>(p, batch, row0 + row, column0 + column, sum);
    }
  });
}

template <typename T>
void launch_with_output(const GemmNvfp4Params& p, Stream stream) {
  const int column_tiles = (p.n + kMmaTile - 1) / kMmaTile;
  const int row_tiles = (p.m + kMmaTile - 1) / kMmaTile;
  launch<nvfp4_simple<T>>(static_cast<unsigned>(p.l) * row_tiles * column_tiles, kMmaThreads, 0,
                          stream, p, row_tiles, column_tiles);
}

}  // namespace nvfp4_simple

void launch_nvfp4_simple(const GemmNvfp4Params& p, Stream stream) {
  switch (p.c_dtype) {
    case DType::fp32:
      return nvfp4_simple::launch_with_output<float>(p, stream);
    case DType::fp16:
      return nvfp4_simple::launch_with_output<__half>(p, stream);
    case DType::bf16:
      return nvfp4_simple::launch_with_output<__nv_bfloat16>(p, stream);
    default:  // refused by the checks
      return;
  }
}

}  // namespace tilewright::cuda
