// K4.2: both GEMMs on tensor cores, and P goes from one to the other in registers (rung k4).
//
// New here: the online softmax works on WGMMA's accumulator in the registers where it lies. The
// MMA's TV layouts, CuTe's maps from (thread, value) to a position in the tile, tell which
// registers form a row and which lanes share it (wgmma_layout.cuh; online_softmax.cuh has the
// arithmetic). P, rounded to BF16 in the order of those registers, is the A
// operand of P V. The lanes' sums of a row are added up once, at the end.
//
// Source    "FlashAttention 3 - A Worklog" and "K4 in CuTe", K4.2; PTX ISA, wgmma.mma_async.
// Tiles     Br = Bc = 64; 128 threads, one warpgroup; thread 0 also loads.
// SMEM      sQ 64 x D, sK and sV 5 x 64 x D BF16: 176 KB at D = 128, 88 KB at D = 64 (+ barriers).
// Registers 255 at most; in each thread 32 hold S, 16 hold P and D / 2 hold O.
//
//   thread 0     Q  KV0 KV1 KV2 KV3 KV4      KV5           KV6 ...
//   warpgroup    wait KV0: S = Q K^T | softmax | O += P V | sync | wait KV1: S = Q K^T | ...
//
// Layouts   All tiles have the 128-byte swizzle, 64 columns a TMA load. V lies in SMEM as in GMEM,
//           D contiguous; as the B operand (D, Bc) of P V that is MN-major.
// Limits    D = 64 or 128, BF16. GEMM and softmax alternate: each waits for the other.
// Worklog   docs/worklog/k4.md
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/output_tile.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k4 {

using namespace cute;
using Element = bfloat16_t;

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim, .br = 64, .bc = 64, .threads = 128, .stages = 5};
}

template <AttnConfig C>
using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, C.stages>;

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[C.br * C.head_dim];            // (Br, D)
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(128) TmaBarrier q_full;
  TmaBarrier kv_full[C.stages];
};
static_assert(sizeof(SharedStorage<config(128)>) == 177 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v;
};

// Starts to load key tile `tile` of K and V; their barrier completes when both are there.
template <AttnConfig C>
__device__ void load_kv(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk,
                        int tile, int stage) {
  constexpr int kBoxColumns = Tiles<C>::kBoxColumns;
  TmaBarrier& full = shared.kv_full[stage];
  full.arrive_and_expect_tx(sizeof(shared.sK[0]) + sizeof(shared.sV[0]));
  tma_load_tile<C.bc, C.head_dim, kBoxColumns>(maps.k, full, shared.sK[stage], tile * C.bc,
                                               walk.kv_head, walk.batch);
  tma_load_tile<C.bc, C.head_dim, kBoxColumns>(maps.v, full, shared.sV[stage], tile * C.bc,
                                               walk.kv_head, walk.batch);
}

// Stores O to global memory, two columns at a time.
template <typename TensorO, typename TensorC>
__device__ void store(const AttentionParams& p, const TileWalk& walk, const TensorO& rO,
                      const TensorC& cO) {
#pragma unroll
  for (int i = 0; i < size<0>(rO); ++i) {
    const int row = walk.row0 + get<0>(cO(i, 0));
    if (row >= p.q_len) {
      continue;
    }
    auto* const out = row_pointer<Element>(p.o, p.o_stride, walk.batch, row, walk.head);
#pragma unroll
    for (int j = 0; j < size<1>(rO); j += 2) {
      *reinterpret_cast<std::uint32_t*>(out + get<1>(cO(i, j))) =
          pack_bf16x2(rO(i, j), rO(i, j + 1));
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k4(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  using T = Tiles<C>;
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

  // Accumulators as the MMA sees them, as (rows, columns), and the coordinates of their registers.
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  const Tensor tSrQ = T::operand_q(shared.sQ);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const Tensor tOrV = T::operand_v(shared.sV[0]);
  Tensor tSrS = T::scores();
  Tensor tOrO = T::output();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  Tensor rO = by_rows<MmaPv>(tOrO);  // (rows, columns)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(threadIdx.x));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(threadIdx.x));
  Tensor rP = make_tensor_like<Element>(tSrS);  // P in S's order of registers ...
  const Tensor tOrP = make_tensor(rP.data(), c_registers_of_a<MmaQk, MmaPv>());  // ... and as A

  constexpr int kRows = size<0>(rS);
  static_assert(size<0>(rO) == kRows, "both accumulators hold the same rows");
  RowState<kRows> state;
  float correction[kRows];
  clear(tOrO);
  const KeyRange keys(p);
  const float scale_log2 = scale_to_log2(p.scale);
  shared.q_full.wait(0);

  RingPosition<C.stages> ring;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, ring.advance()) {
    shared.kv_full[ring.stage].wait(ring.phase);

    wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, ring.stage), tSrS);
    if (tile >= walk.full_tiles) {
      mask(rS, cS, keys, walk.row0, tile * C.bc);
    }
    softmax_step<MmaQk>(rS, state, scale_log2, correction);
    scale_rows(rO, correction);
    round_to_16_bits(tSrS, rP);
    wgmma<true>(MmaPv{}, tOrP, tOrV(_, _, _, ring.stage), tOrO);

    __syncthreads();  // no warp reads this stage any more
    if (loader && tile + C.stages < walk.kv_tiles) {
      load_kv(shared, maps, walk, tile + C.stages, ring.stage);
    }
  }
  normalize<MmaPv>(p, walk, walk.row0, rO, cO, state);
  store(p, walk, rO, cO);
}

}  // namespace k4

void launch_k4(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k4::config(kHeadDim);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride) {
      return encode_tensor_map(base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride,
                                                   kConfig.bc, TmaSwizzle::b128));
    };
    const k4::TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride),
                              .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride),
                              .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride)};
    launch<k4::k4<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                             sizeof(k4::SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace tilewright::cuda
