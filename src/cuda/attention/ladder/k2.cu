// K2: FlashAttention-2 tiling and online softmax, one fused kernel on CUDA cores.
//
// New here: S never leaves the chip. A block keeps one tile of queries and walks over the keys tile
// by tile; it rescales l and O whenever m grows (tile_walk.cuh, row_group.cuh).
//
// Source    FlashAttention-2, algorithm 1; the blog post "FlashAttention 3 - A Worklog", K2.
// Tiles     Br = Bc = 64; 256 threads = 64 rows x 4 lanes.
// SMEM      sQ 64 x D BF16, sKV 64 x D BF16 (K, then V in the same place), sP 64 x 64 FP32:
//           48 KB at D = 128, 32 KB at D = 64.
// Registers 128 at most, so that two blocks fit on an SM.
//
//   load Q
//   for each key tile:
//     load K -> sKV | S = Q K^T (registers) | online softmax | P -> sP
//     load V -> sKV | O += P V
//   O / l, LSE
//
// Layouts   Tiles are plain row-major. Lanes start their dot products at different vectors, which
//           keeps the reads of K free of bank conflicts without padding.
// Limits    D = 64 or 128, BF16. A block either loads or computes, never both: only other blocks
//           on the SM hide its loads.
// Worklog   docs/worklog/k2.md
#include "cuda/attention/blocks/row_group.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k2 {

using bf16 = __nv_bfloat16;

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim, .br = 64, .bc = 64, .threads = 256};
}

template <AttnConfig C>
struct SharedStorage {
  alignas(128) bf16 sQ[C.br * C.head_dim];   // (Br, D)
  alignas(128) bf16 sKV[C.bc * C.head_dim];  // (Bc, D)
  alignas(128) float sP[C.br * C.bc];        // (Br, Bc)
};
static_assert(sizeof(SharedStorage<config(128)>) == 48 * 1024);

// Rows [row0, row0 + kRows) of one head into SMEM, 16 bytes a thread at a time; rows from
// `row_end` on become zeros.
template <AttnConfig C, int kRows>
__device__ void load_tile(bf16* tile, const bf16* head, std::int64_t row_stride, int row0,
                          int row_end) {
  constexpr int kVector = 8;
  constexpr int kRowVectors = C.head_dim / kVector;
  for (int i = threadIdx.x; i < kRows * kRowVectors; i += C.threads) {
    const int row = row0 + i / kRowVectors;
    const int column = i % kRowVectors * kVector;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (row < row_end) {
      value = *reinterpret_cast<const uint4*>(head + row * row_stride + column);
    }
    *reinterpret_cast<uint4*>(tile + i * kVector) = value;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 2)
    k2(const __grid_constant__ AttentionParams p) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(128) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);

  const TileWalk walk = tile_walk(p, C, blockIdx.x);
  const auto* const gQ = row_pointer<const bf16>(p.q, p.q_stride, walk.batch, 0, walk.head);
  const auto* const gK = row_pointer<const bf16>(p.k, p.k_stride, walk.batch, 0, walk.kv_head);
  const auto* const gV = row_pointer<const bf16>(p.v, p.v_stride, walk.batch, 0, walk.kv_head);
  const float scale_log2 = scale_to_log2(p.scale);

  RowGroup<C> group(threadIdx.x);
  const int limit = KeyRange(p).limit(walk.row0 + group.row);
  load_tile<C, C.br>(shared.sQ, gQ, p.q_stride.seq, walk.row0, p.q_len);

  for (int tile = 0; tile < walk.kv_tiles; ++tile) {
    const int key0 = tile * C.bc;
    load_tile<C, C.bc>(shared.sKV, gK, p.k_stride.seq, key0, p.kv_len);
    __syncthreads();  // Q and K are there

    float s[RowGroup<C>::kScores];
    group.scores(shared.sQ, shared.sKV, s);
    group.scale_and_mask(s, scale_log2, limit - key0);
    group.online_softmax(s);
    group.store_probabilities(shared.sP, s);
    __syncthreads();  // no thread reads K any more

    load_tile<C, C.bc>(shared.sKV, gV, p.v_stride.seq, key0, p.kv_len);
    __syncthreads();  // V and P are there

    group.accumulate(shared.sP, shared.sKV);
    __syncthreads();  // no thread reads V or P any more
  }
  group.finalize(p, walk);
}

}  // namespace k2

void launch_k2(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k2::config(kHeadDim);
    launch<k2::k2<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                             sizeof(k2::SharedStorage<kConfig>), stream, p);
  });
}

}  // namespace tilewright::cuda
