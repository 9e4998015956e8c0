// K3: K2 with TMA loads, and 1, 2 or 5 stages of K and V (rungs k3_1, k3_2, k3_3).
//
// New here: one thread loads by TMA, and mbarriers tell the others when a tile is there (tma.cuh).
// K and V have SMEM of their own, so that a later tile can arrive while this one is read. The
// arithmetic is K2's (row_group.cuh).
//
// Source    "FlashAttention 3 - A Worklog", K3; PTX ISA, cp.async.bulk.tensor and mbarrier.
// Tiles     Br = Bc = 64; 256 threads = 64 rows x 4 lanes; thread 0 also loads.
// SMEM      sQ 64 x D, sK and sV stages x 64 x D BF16, sP 64 x 64 FP32:
//             D = 128: 16 + stages x 32 + 16 KB = 64, 96, 192 KB (+ barriers)
//             D = 64:   8 + stages x 16 + 16 KB = 40, 56, 104 KB (+ barriers)
// Registers 128 at most, as in K2, where two blocks fit on an SM; 255 with five stages at D = 128,
//           where only one fits.
//
//   thread 0      Q   KV0 KV1 ... KV[stages-1]         KV[stages]         KV[stages+1]  ...
//                                                     ^ stage 0 free     ^ stage 1 free
//   all threads   wait Q | wait KV0: S, softmax, O | sync | wait KV1: S, softmax, O | sync | ...
//
// Layouts   Tiles are plain row-major, a TMA load each. Rows outside the tensor become zeros.
// Limits    D = 64 or 128, BF16. In K2 other blocks on the SM hide the loads already: K3 gains
//           little while the arithmetic is slow.
// Worklog   docs/worklog/k3.md
#include "cuda/attention/blocks/row_group.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k3 {

using bf16 = __nv_bfloat16;

constexpr AttnConfig config(int head_dim, int stages) {
  return {.head_dim = head_dim, .br = 64, .bc = 64, .threads = 256, .stages = stages};
}

template <AttnConfig C>
struct SharedStorage {
  alignas(128) bf16 sQ[C.br * C.head_dim];            // (Br, D)
  alignas(128) bf16 sK[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(128) bf16 sV[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(128) float sP[C.br * C.bc];                 // (Br, Bc)
  alignas(128) TmaBarrier q_full;
  TmaBarrier kv_full[C.stages];
};
static_assert(sizeof(SharedStorage<config(128, 5)>) == 192 * 1024 + 128);

struct TensorMaps {
  CUtensorMap q, k, v;
};

// Starts to load key tile `tile` of K and V; their barrier completes when both are there.
template <AttnConfig C>
__device__ void load_kv(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk,
                        int tile, int stage) {
  TmaBarrier& full = shared.kv_full[stage];
  full.arrive_and_expect_tx(sizeof(shared.sK[0]) + sizeof(shared.sV[0]));
  tma_load_tile<C.bc, C.head_dim, C.head_dim>(maps.k, full, shared.sK[stage], tile * C.bc,
                                              walk.kv_head, walk.batch);
  tma_load_tile<C.bc, C.head_dim, C.head_dim>(maps.v, full, shared.sV[stage], tile * C.bc,
                                              walk.kv_head, walk.batch);
}

// The blocks that fit on an SM by their SMEM, two at most: fewer blocks have more registers.
template <AttnConfig C>
constexpr int blocks_per_sm() {
  constexpr std::size_t kSmem_bytes = 227 * 1024;
  return 2 * sizeof(SharedStorage<C>) <= kSmem_bytes ? 2 : 1;
}

template <int kHeadDim, int kStages>
__global__ void __launch_bounds__(config(kHeadDim, kStages).threads,
                                  blocks_per_sm<config(kHeadDim, kStages)>())
    k3(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim, kStages);
  extern __shared__ __align__(128) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
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
    tma_load_tile<C.br, C.head_dim, C.head_dim>(maps.q, shared.q_full, shared.sQ, walk.row0,
                                                walk.head, walk.batch);
    for (int tile = 0; tile < C.stages && tile < walk.kv_tiles; ++tile) {
      load_kv(shared, maps, walk, tile, tile);
    }
  }

  RowGroup<C> group(threadIdx.x);
  const int limit = KeyRange(p).limit(walk.row0 + group.row);
  const float scale_log2 = scale_to_log2(p.scale);
  shared.q_full.wait(0);

  RingPosition<C.stages> ring;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, ring.advance()) {
    shared.kv_full[ring.stage].wait(ring.phase);

    float s[RowGroup<C>::kScores];
    group.scores(shared.sQ, shared.sK[ring.stage], s);
    group.scale_and_mask(s, scale_log2, limit - tile * C.bc);
    group.online_softmax(s);
    group.store_probabilities(shared.sP, s);
    __syncwarp();  // a row's lanes are in one warp, and only they read its P
    group.accumulate(shared.sP, shared.sV[ring.stage]);

    __syncthreads();  // no thread reads this stage any more
    if (loader && tile + C.stages < walk.kv_tiles) {
      load_kv(shared, maps, walk, tile + C.stages, ring.stage);
    }
  }
  group.finalize(p, walk);
}

template <int kStages>
void launch_k3(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = config(kHeadDim, kStages);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride) {
      return encode_tensor_map(base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride,
                                                   kConfig.bc, TmaSwizzle::none));
    };
    const TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride),
                          .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride),
                          .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride)};
    launch<k3<kHeadDim, kStages>>(tile_count(p, kConfig), kConfig.threads,
                                  sizeof(SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace k3

void launch_k3_1(const AttentionParams& p, Stream stream) { k3::launch_k3<1>(p, stream); }
void launch_k3_2(const AttentionParams& p, Stream stream) { k3::launch_k3<2>(p, stream); }
void launch_k3_3(const AttentionParams& p, Stream stream) { k3::launch_k3<5>(p, stream); }

}  // namespace tilewright::cuda
