// gemm_naive: C = A B^T by its definition, the first step towards an NVFP4 GEMM.
//
//   each thread   sum = 0 | for each k: sum += A[i, k] B[j, k] | C[i, j] = sum
//
// Source    the NVFP4 article by NVIDIA, part 2: "Naive GEMM".
// Tiles     none: one thread for each element of C, in blocks of 16 x 16.
// SMEM      none.
// Registers as many as the compiler takes; nothing depends on their number.
// Traffic   Each multiplication loads both factors: 4 bytes for 2 FLOPs. Only the caches help.
// Worklog   docs/worklog/gemm-ladder.md
#include <cuda_bf16.h>

#include "cuda/common/launch.cuh"
#include "ops/gemm_bf16/params.hpp"

namespace tilewright::cuda {
namespace gemm_naive {

using bf16 = __nv_bfloat16;

constexpr int kSide = 16;

__global__ void __launch_bounds__(kSide* kSide)
    gemm_naive(const __grid_constant__ GemmBf16Params p, int column_tiles) {
  const int column = blockIdx.x % column_tiles * kSide + threadIdx.x % kSide;
  const int row = blockIdx.x / column_tiles * kSide + threadIdx.x / kSide;
  if (row >= p.m || column >= p.n) {
    return;
  }
  const auto* const a = static_cast<const bf16*>(p.a) + row * p.a_stride;
  const auto* const b = static_cast<const bf16*>(p.b) + column * p.b_stride;
  float sum = 0.0f;
  for (int k = 0; k < p.k; ++k) {
    sum += __bfloat162float(a[k]) * __bfloat162float(b[k]);
  }
  static_cast<bf16*>(p.c)[row * p.c_stride + column] = __float2bfloat16(sum);
}

}  // namespace gemm_naive

void launch_gemm_naive(const GemmBf16Params& p, Stream stream) {
  constexpr int kSide = gemm_naive::kSide;
  const int column_tiles = (p.n + kSide - 1) / kSide;
  const int row_tiles = (p.m + kSide - 1) / kSide;
  launch<gemm_naive::gemm_naive>(static_cast<unsigned>(row_tiles) * column_tiles, kSide * kSide, 0,
                                 stream, p, column_tiles);
}

}  // namespace tilewright::cuda
