// K4.1: Q K^T on tensor cores (rung k4_qk); softmax and P V are K3's.
//
// New here: WGMMA, with which a warpgroup computes a GEMM of swizzled tiles in SMEM, asynchronously
// (wgmma.cuh). The hardware decides which thread's register has which element of S. CuTe tells a
// thread the (row, key) of each of its registers: it partitions a tensor of coordinates (an
// "identity tensor") in the same way as S. With these coordinates the thread writes S to SMEM, from
// which the lanes that share a row read it (row_group.cuh).
//
// Source    "FlashAttention 3 - A Worklog" and "K4 in CuTe", K4.1; PTX ISA, wgmma.mma_async.
// Tiles     Br = Bc = 64; 128 threads, one warpgroup = 64 rows x 2 lanes; thread 0 also loads.
// SMEM      sQ 64 x D, sK and sV 5 x 64 x D BF16, sS 64 x 64 FP32 (S, then P):
//           192 KB at D = 128, 104 KB at D = 64 (+ barriers).
// Registers 255 at most; of these 32 hold S and D / 2 hold O.
//
//   thread 0     Q  KV0 KV1 KV2 KV3 KV4           KV5              KV6 ...
//   warpgroup    wait KV0: S = Q K^T by WGMMA | S -> sS | softmax, P -> sS | O += P V | sync | ...
//
// Layouts   sQ and sK are K-major with the 128-byte swizzle that WGMMA reads, 64 columns a TMA
//           load; sV is plain row-major for the CUDA cores.
// Limits    D = 64 or 128, BF16. P V on CUDA cores takes nearly all of the time.
// Worklog   docs/worklog/k4.md
#include "cuda/attention/blocks/row_group.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k4_qk {

using namespace cute;
using bf16 = __nv_bfloat16;

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim, .br = 64, .bc = 64, .threads = 128, .stages = 5};
}

template <AttnConfig C>
struct Traits {
  using Element = bfloat16_t;
  using Atom = GMMA::Layout_K_SW128_Atom<Element>;  // 8 rows x 64 columns
  using LayoutQ = decltype(tile_to_shape(Atom{}, Shape<Int<C.br>, Int<C.head_dim>>{}));
  using LayoutK =
      decltype(tile_to_shape(Atom{}, Shape<Int<C.bc>, Int<C.head_dim>, Int<C.stages>>{}));
  using TiledMmaQk = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float,
                           Shape<Int<C.br>, Int<C.bc>, Int<C.head_dim>>>()));
  static constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
};

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) bfloat16_t sQ[C.br * C.head_dim];            // (Br, D), swizzled
  alignas(1024) bfloat16_t sK[C.stages][C.bc * C.head_dim];  // (Bc, D, stages), swizzled
  alignas(1024) bf16 sV[C.stages][C.bc * C.head_dim];        // (Bc, D, stages)
  alignas(128) float sS[C.br * C.bc];                        // (Br, Bc), S and then P
  alignas(128) TmaBarrier q_full;
  TmaBarrier kv_full[C.stages];
};
static_assert(sizeof(SharedStorage<config(128)>) == 193 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v;
};

// Starts to load key tile `tile` of K and V; their barrier completes when both are there.
template <AttnConfig C>
__device__ void load_kv(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk,
                        int tile, int stage) {
  TmaBarrier& full = shared.kv_full[stage];
  full.arrive_and_expect_tx(sizeof(shared.sK[0]) + sizeof(shared.sV[0]));
  tma_load_tile<C.bc, C.head_dim, Traits<C>::kBoxColumns>(maps.k, full, shared.sK[stage],
                                                          tile * C.bc, walk.kv_head, walk.batch);
  tma_load_tile<C.bc, C.head_dim, C.head_dim>(maps.v, full, shared.sV[stage], tile * C.bc,
                                              walk.kv_head, walk.batch);
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k4_qk(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  using T = Traits<C>;
  const TileWalk walk = tile_walk(p, C, blockIdx.x);
  const bool loader = threadIdx.x == 0;

  if (loader) {
    shared.q_full.init(1);
    for (TmaBarrier& full : shared.kv_full) {
      full.init(1);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  if (loader) {  // prefetch: Q and the first tiles
    shared.q_full.arrive_and_expect_tx(sizeof(shared.sQ));
    tma_load_tile<C.br, C.head_dim, T::kBoxColumns>(maps.q, shared.q_full, shared.sQ, walk.row0,
                                                    walk.head, walk.batch);
    for (int tile = 0; tile < C.stages && tile < walk.kv_tiles; ++tile) {
      load_kv(shared, maps, walk, tile, tile);
    }
  }

  const Tensor sQ = make_tensor(make_smem_ptr(shared.sQ), typename T::LayoutQ{});
  const Tensor sK = make_tensor(make_smem_ptr(shared.sK[0]), typename T::LayoutK{});
  typename T::TiledMmaQk mma_qk;
  const auto thread_mma = mma_qk.get_slice(threadIdx.x);
  const Tensor tSrQ = thread_mma.make_fragment_A(thread_mma.partition_A(sQ));  // (MMA,MMA_M,MMA_K)
  const Tensor tSrK = thread_mma.make_fragment_B(thread_mma.partition_B(sK));  // (..., stages)
  const Tensor cS = make_identity_tensor(Shape<Int<C.br>, Int<C.bc>>{});
  const Tensor tScS = thread_mma.partition_C(cS);  // (MMA,MMA_M,MMA_N) -> (row, key)

  RowGroup<C> group(threadIdx.x);
  const int limit = KeyRange(p).limit(walk.row0 + group.row);
  const float scale_log2 = scale_to_log2(p.scale);
  shared.q_full.wait(0);

  RingPosition<C.stages> ring;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, ring.advance()) {
    shared.kv_full[ring.stage].wait(ring.phase);

    Tensor tSrS = partition_fragment_C(mma_qk, Shape<Int<C.br>, Int<C.bc>>{});
    wgmma<false>(mma_qk, tSrQ, tSrK(_, _, _, ring.stage), tSrS);
#pragma unroll
    for (int i = 0; i < size(tSrS); ++i) {
      const auto [row, key] = tScS(i);
      shared.sS[row * C.bc + key] = tSrS(i);
    }
    __syncthreads();  // S is there

    float s[RowGroup<C>::kScores];
    group.load_scores(shared.sS, s);
    group.scale_and_mask(s, scale_log2, limit - tile * C.bc);
    group.online_softmax(s);
    group.store_probabilities(shared.sS, s);
    __syncwarp();  // a row's lanes are in one warp, and only they read its P
    group.accumulate(shared.sS, shared.sV[ring.stage]);

    __syncthreads();  // no thread reads this stage or P any more
    if (loader && tile + C.stages < walk.kv_tiles) {
      load_kv(shared, maps, walk, tile + C.stages, ring.stage);
    }
  }
  group.finalize(p, walk);
}

}  // namespace k4_qk

void launch_k4_qk(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k4_qk::config(kHeadDim);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride,
                         TmaSwizzle swizzle) {
      return encode_tensor_map(
          base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride, kConfig.bc, swizzle));
    };
    const k4_qk::TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride, TmaSwizzle::b128),
                                 .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride, TmaSwizzle::b128),
                                 .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride, TmaSwizzle::none)};
    launch<k4_qk::k4_qk<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                                   sizeof(k4_qk::SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace tilewright::cuda
