// gemm_tiled: gemm_naive with tiles in shared memory.
//
// New here: a block loads a tile of A and one of B into SMEM, and uses each element 64 times. A
// thread computes 4 x 4 elements of C, so that 8 reads of SMEM serve 16 multiplications.
//
//   for each tile of K:
//     load A -> sA, B -> sB | C += sA sB^T
//   store C
//
// Source    the NVFP4 article by NVIDIA, part 2: "Tiled GEMM".
// Tiles     Br = Bc = 64, Bk = 32; 16 x 16 threads. A thread's elements of C lie 16 apart.
// SMEM      sA, sB 64 x 32 BF16: 8 KB.
// Registers as many as the compiler takes; nothing depends on their number.
// Layouts   Tiles are plain row-major. 16 threads read one column of 16 rows of sB, which lie 64
//           bytes apart: two banks serve all 16 in 8 steps. gemm_swizzled removes that conflict.
// Limits    K is a multiple of 32; the table asks for 64, which the other steps need.
// Worklog   docs/worklog/gemm-ladder.md
#include <cuda_bf16.h>

#include "cuda/common/launch.cuh"
#include "ops/gemm_bf16/params.hpp"

namespace tilewright::cuda {
namespace gemm_tiled {

using bf16 = __nv_bfloat16;

constexpr int kTile = 64;  // Br and Bc
constexpr int kBk = 32;
constexpr int kSide = 16;  // threads along rows, and along columns
constexpr int kThreads = kSide * kSide;
constexpr int kThreadTile = kTile / kSide;  // rows, and columns, of C that a thread computes

struct SharedStorage {
  alignas(16) bf16 sA[kTile][kBk];
  alignas(16) bf16 sB[kTile][kBk];
};
static_assert(sizeof(SharedStorage) == 8 * 1024);

// Loads rows row0, row0 + 1, ... from column k0 on. Rows from row_end on become zeros.
__device__ void load_tile(bf16 (&tile)[kTile][kBk], const void* matrix, std::int64_t stride,
                          int row0, int row_end, int k0) {
  for (int i = threadIdx.x; i < kTile * kBk; i += kThreads) {
    const int row = row0 + i / kBk;
    tile[i / kBk][i % kBk] = row < row_end
                                 ? static_cast<const bf16*>(matrix)[row * stride + k0 + i % kBk]
                                 : __float2bfloat16(0.0f);
  }
}

__global__ void __launch_bounds__(kThreads)
    gemm_tiled(const __grid_constant__ GemmBf16Params p, int column_tiles) {
  __shared__ SharedStorage shared;
  const int row0 = blockIdx.x / column_tiles * kTile;
  const int column0 = blockIdx.x % column_tiles * kTile;
  const int row = threadIdx.x / kSide;
  const int column = threadIdx.x % kSide;

  float rC[kThreadTile][kThreadTile] = {};
  for (int k0 = 0; k0 < p.k; k0 += kBk) {
    load_tile(shared.sA, p.a, p.a_stride, row0, p.m, k0);
    load_tile(shared.sB, p.b, p.b_stride, column0, p.n, k0);
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kBk; ++k) {
      float rA[kThreadTile];
      float rB[kThreadTile];
#pragma unroll
      for (int i = 0; i < kThreadTile; ++i) {
        rA[i] = __bfloat162float(shared.sA[row + kSide * i][k]);
        rB[i] = __bfloat162float(shared.sB[column + kSide * i][k]);
      }
#pragma unroll
      for (int i = 0; i < kThreadTile * kThreadTile; ++i) {
        rC[i / kThreadTile][i % kThreadTile] += rA[i / kThreadTile] * rB[i % kThreadTile];
      }
    }
    __syncthreads();  // no warp reads the tiles any more
  }

#pragma unroll
  for (int i = 0; i < kThreadTile * kThreadTile; ++i) {
    const int m = row0 + row + kSide * (i / kThreadTile);
    const int n = column0 + column + kSide * (i % kThreadTile);
    if (m < p.m && n < p.n) {
      static_cast<bf16*>(p.c)[m * p.c_stride + n] =
          __float2bfloat16(rC[i / kThreadTile][i % kThreadTile]);
    }
  }
}

}  // namespace gemm_tiled

void launch_gemm_tiled(const GemmBf16Params& p, Stream stream) {
  constexpr int kTile = gemm_tiled::kTile;
  const int column_tiles = (p.n + kTile - 1) / kTile;
  const int row_tiles = (p.m + kTile - 1) / kTile;
  launch<gemm_tiled::gemm_tiled>(static_cast<unsigned>(row_tiles) * column_tiles,
                                 gemm_tiled::kThreads, 0, stream, p, column_tiles);
}

}  // namespace tilewright::cuda
