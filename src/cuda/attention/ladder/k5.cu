// K5: warp specialisation (rung k5).
//
// New here: some warps load and others compute. One thread of the producer warpgroup loads tiles
// ahead of time; two consumer warpgroups, with 64 query rows each, never issue a load. Full and
// empty barriers (TmaRing) replace __syncthreads, setmaxnreg moves registers from the producer to
// the consumers, and O is stored through SMEM by TMA.
//
// Source    "FlashAttention 3 - A Worklog", K5; FlashAttention-3 paper, section 3.1; PTX ISA,
//           setmaxnreg.
// Tiles     Br = 128 = 2 x 64; Bc = 128 (D = 64, 128), 80 (D = 256); 384 threads.
// SMEM      sQ 128 x D, sK and sV 2 x Bc x D BF16: 80, 160, 224 KB at D = 64, 128, 256
//           (+ barriers). A consumer's O takes the place of its Q.
// Registers 40 for a thread of the producer and 232 for one of a consumer, of which Bc / 2 hold S,
//           Bc / 4 hold P and D / 2 hold O.
//
//   producer     K0 Q V0 K1 V1 .. K2 V2 ...                (each waits until its stage is empty)
//   consumer 0   wait K0: S = Q0 K^T | softmax | wait V0: O0 += P V | wait K1 ...  | store O0
//   consumer 1   wait K0: S = Q1 K^T | softmax | wait V0: O1 += P V | wait K1 ...  | store O1
//
// Layouts   All tiles have the 128-byte swizzle, 64 columns a TMA load.
// Limits    D = 64, 128 or 256, BF16. Nothing keeps the two consumers out of step. Within one, GEMM
//           and softmax still alternate.
// Worklog   docs/worklog/k5.md
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/output_tile.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k5 {

using namespace cute;
using Element = bfloat16_t;

constexpr int kConsumers = 2;  // warpgroups

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim,
          .br = kConsumers * kWarpgroupRows,
          .bc = head_dim == 256 ? 80 : 128,
          .threads = block_threads(kConsumers),
          .stages = 2};
}

template <AttnConfig C>
using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, C.stages>;

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[kConsumers][kWarpgroupRows * C.head_dim];  // (64, D), then O
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];              // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.head_dim];              // (Bc, D, stages)
  alignas(128) TmaBarrier q_full;
  TmaRing<C.stages> k;
  TmaRing<C.stages> v;
};
static_assert(sizeof(SharedStorage<config(64)>) == 81 * 1024);
static_assert(sizeof(SharedStorage<config(128)>) == 161 * 1024);
static_assert(sizeof(SharedStorage<config(256)>) == 225 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v, o;
};

// One thread loads all that the consumers read.
template <AttnConfig C>
__device__ void produce(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk) {
  constexpr int kBox = Tiles<C>::kBoxColumns;
  RingPosition<C.stages> at;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, at.advance()) {
    TmaBarrier& k_full = shared.k.acquire(at, sizeof(shared.sK[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.k, k_full, shared.sK[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
    if (tile == 0) {
      shared.q_full.arrive_and_expect_tx(sizeof(shared.sQ));
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        tma_load_tile<kWarpgroupRows, C.head_dim, kBox>(maps.q, shared.q_full, shared.sQ[consumer],
                                                        walk.row0 + consumer * kWarpgroupRows,
                                                        walk.head, walk.batch);
      }
    }
    TmaBarrier& v_full = shared.v.acquire(at, sizeof(shared.sV[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.v, v_full, shared.sV[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
  }
}

// A consumer: one warpgroup, which computes its 64 rows by K4.2's loop.
template <AttnConfig C>
__device__ void consume(SharedStorage<C>& shared, const AttentionParams& p, const TensorMaps& maps,
                        const TileWalk& walk, int consumer) {
  using T = Tiles<C>;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int row0 = walk.row0 + consumer * kWarpgroupRows;

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const Tensor tOrV = T::operand_v(shared.sV[0]);
  Tensor tSrS = T::scores();
  Tensor tOrO = T::output();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  Tensor rO = by_rows<MmaPv>(tOrO);  // (rows, columns)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread));
  Tensor rP = make_tensor_like<Element>(tSrS);
  const Tensor tOrP = make_tensor(rP.data(), c_registers_of_a<MmaQk, MmaPv>());

  constexpr int kRows = size<0>(rS);
  RowState<kRows> state;
  float correction[kRows];
  clear(tOrO);
  const KeyRange keys(p);
  const float scale_log2 = scale_to_log2(p.scale);

  if (walk.kv_tiles > 0) {
    shared.q_full.wait(0);
  }
  RingPosition<C.stages> at;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, at.advance()) {
    shared.k.wait(at);
    wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
    shared.k.release(at);

    if (tile >= walk.full_tiles) {
      mask(rS, cS, keys, row0, tile * C.bc);
    }
    softmax_step<MmaQk>(rS, state, scale_log2, correction);
    scale_rows(rO, correction);
    round_to_16_bits(tSrS, rP);

    shared.v.wait(at);
    wgmma<true>(MmaPv{}, tOrP, tOrV(_, _, _, at.stage), tOrO);
    shared.v.release(at);
  }
  normalize<MmaPv>(p, walk, row0, rO, cO, state);
  store_output<MmaPv>(maps.o, walk, row0, tOrO, T::tile(shared.sQ[consumer], typename T::LayoutQ{}),
                      thread, consumer);
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k5(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  const TileWalk walk = tile_walk(p, C, blockIdx.x);

  if (threadIdx.x == 0) {
    constexpr int kConsumerWarps = kConsumers * kWarpgroupThreads / 32;
    shared.q_full.init(1);
    shared.k.init(kConsumerWarps);
    shared.v.init(kConsumerWarps);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  run_roles<kConsumers>(
      [&](int) {
        if (threadIdx.x == 0) {
          produce<C>(shared, maps, walk);
        }
      },
      [&](int consumer) { consume<C>(shared, p, maps, walk, consumer); });
}

}  // namespace k5

void launch_k5(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128, 256>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k5::config(kHeadDim);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride,
                         int rows) {
      return encode_tensor_map(
          base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride, rows, TmaSwizzle::b128));
    };
    const k5::TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride, kWarpgroupRows),
                              .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride, kConfig.bc),
                              .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride, kConfig.bc),
                              .o = map(p.o, p.q_len, p.heads, p.o_stride, kWarpgroupRows)};
    launch<k5::k5<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                             sizeof(k5::SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace tilewright::cuda
