// gemm_swizzled: gemm_tiled on tensor cores, from tiles that are free of bank conflicts.
//
// New here: mma_tile.cuh. A thread loads 16 bytes at a time and stores them in a place that is
// XORed with their row; ldmatrix reads them to registers, and mma.sync m16n8k16 multiplies.
//
//   for each tile of K:
//     load A -> sA, B -> sB | ldmatrix | mma: C += sA sB^T
//   store C
//
// Source    the NVFP4 article by NVIDIA, part 2: "Swizzling".
// Tiles     Br = Bc = Bk = 64; 128 threads, four warps of 32 x 32 of C.
// SMEM      sA, sB 64 x 64 BF16: 16 KB.
// Registers 32 accumulators a thread.
// Limits    K is a multiple of 64, rows are aligned to 16 bytes. A block either loads or computes,
//           never both: only other blocks on the SM hide its loads.
// Worklog   docs/worklog/gemm-ladder.md
#include <cuda_bf16.h>

#include "cuda/common/launch.cuh"
#include "cuda/gemm/mma_tile.cuh"
#include "ops/gemm_bf16/params.hpp"

namespace tilewright::cuda {
namespace gemm_swizzled {

struct SharedStorage {
  SwizzledTile sA;
  SwizzledTile sB;
};
static_assert(sizeof(SharedStorage) == 16 * 1024);

__global__ void __launch_bounds__(kMmaThreads)
    gemm_swizzled(const __grid_constant__ GemmBf16Params p, int column_tiles) {
  __shared__ SharedStorage shared;
  const int row0 = blockIdx.x / column_tiles * kMmaTile;
  const int column0 = blockIdx.x % column_tiles * kMmaTile;

  WarpTile warp;
  for (int k0 = 0; k0 < p.k; k0 += kMmaTile) {
    load_tile(shared.sA, p.a, p.a_stride, row0, p.m, k0);
    load_tile(shared.sB, p.b, p.b_stride, column0, p.n, k0);
    __syncthreads();
    warp.multiply(shared.sA, shared.sB);
    __syncthreads();  // no warp reads the tiles any more
  }
  warp.for_each([&](int row, int column, float value) {
    if (row0 + row < p.m && column0 + column < p.n) {
      static_cast<__nv_bfloat16*>(p.c)[(row0 + row) * p.c_stride + column0 + column] =
          __float2bfloat16(value);
    }
  });
}

}  // namespace gemm_swizzled

void launch_gemm_swizzled(const GemmBf16Params& p, Stream stream) {
  const int column_tiles = (p.n + kMmaTile - 1) / kMmaTile;
  const int row_tiles = (p.m + kMmaTile - 1) / kMmaTile;
  launch<gemm_swizzled::gemm_swizzled>(static_cast<unsigned>(row_tiles) * column_tiles, kMmaThreads,
                                       0, stream, p, column_tiles);
}

}  // namespace tilewright::cuda
