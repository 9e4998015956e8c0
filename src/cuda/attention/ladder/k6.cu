// K6: ping-pong and overlap (rungs k6_pingpong, k6_overlap, k6).
//
// New here, over K5: the softmax runs while the tensor cores work. There are two ways, each of
// which can be chosen by itself. Ping-pong: the consumers take turns to issue GEMMs, so that the
// softmax of one runs while another's GEMMs do. Overlap: a consumer issues Q K^T of step j and P V
// of step j - 1 together, and runs the softmax of step j while P V is computed. A step is a key
// tile. The first step takes the last keys, so that the tiles with a mask come first.
//
// Source    "FlashAttention 3 - A Worklog", K6; FlashAttention-3 paper, sections 3.1 and 3.2.
// Tiles     D = 64: Br = 192 = 3 x 64, Bc = 128, 512 threads. D = 128 and 256: Br = 128 = 2 x 64,
//           Bc = 176 and 80, 384 threads.
// SMEM      sQ Br x D, sK and sV 2 x Bc x D BF16: 88, 208, 224 KB at D = 64, 128, 256
//           (+ barriers). A consumer's O takes the place of its Q.
// Registers 40 for a thread of the producer and 232 for one of a consumer; 32 and 160 at D = 64. Of
//           a consumer's registers, Bc / 2 hold S, Bc / 4 hold P and D / 2 hold O.
//
//   consumer 0   QK1 PV0 | softmax 1          | QK2 PV1 | softmax 2          | QK3 PV2
//   consumer 1             QK1 PV0 | softmax 1          | QK2 PV1 | softmax 2
//   tensor core  ####### # ####### # ####### # ####### # ####### # ...
//
//   overlap:     QK(j) issued | PV(j-1) issued | QK(j) done: softmax j ... | PV(j-1) done: scale O
//
// Layouts   All tiles have the 128-byte swizzle, 64 columns a TMA load.
// Limits    D = 64, 128 or 256, BF16. A block computes one tile of queries: nothing runs during its
//           first loads and its last store.
// Worklog   docs/worklog/k6.md
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
namespace k6 {

using namespace cute;
using Element = bfloat16_t;

// Which of the two ways a rung uses: the worklog compares each by itself.
struct Options {
  bool pingpong;
  bool overlap;
};

constexpr AttnConfig config(int head_dim) {
  switch (head_dim) {
    case 64:
      return {.head_dim = 64, .br = 192, .bc = 128, .threads = block_threads(3), .stages = 2};
    case 128:
      return {.head_dim = 128, .br = 128, .bc = 176, .threads = block_threads(2), .stages = 2};
    default:
      return {.head_dim = 256, .br = 128, .bc = 80, .threads = block_threads(2), .stages = 2};
  }
}

constexpr int consumers(const AttnConfig& c) { return c.br / kWarpgroupRows; }

template <AttnConfig C>
using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, C.stages>;

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[consumers(C)][kWarpgroupRows * C.head_dim];  // (64, D), then O
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];                // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.head_dim];                // (Bc, D, stages)
  alignas(128) TmaBarrier q_full[consumers(C)];
  TmaRing<C.stages> k;
  TmaRing<C.stages> v;
};
static_assert(sizeof(SharedStorage<config(64)>) == 89 * 1024);
static_assert(sizeof(SharedStorage<config(128)>) == 209 * 1024);
static_assert(sizeof(SharedStorage<config(256)>) == 225 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v, o;
};

// One thread loads all that the consumers read, in the order in which they read it: each V tile
// comes one tile later than its K tile.
template <AttnConfig C>
__device__ void produce(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk) {
  constexpr int kBox = Tiles<C>::kBoxColumns;
  const auto load_k = [&](const RingPosition<C.stages>& at, int tile) {
    TmaBarrier& full = shared.k.acquire(at, sizeof(shared.sK[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.k, full, shared.sK[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
  };
  const auto load_v = [&](const RingPosition<C.stages>& at, int tile) {
    TmaBarrier& full = shared.v.acquire(at, sizeof(shared.sV[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.v, full, shared.sV[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
  };
  RingPosition<C.stages> at, at_v;
#pragma unroll 1  // each load is in the code once, which takes few registers
  for (int tile = walk.kv_tiles - 1; tile >= -1; --tile) {
    if (tile >= 0) {
      load_k(at, tile);
    }
    if (tile == walk.kv_tiles - 1) {
#pragma unroll 1
      for (int consumer = 0; consumer < consumers(C); ++consumer) {
        shared.q_full[consumer].arrive_and_expect_tx(sizeof(shared.sQ[0]));
        tma_load_tile<kWarpgroupRows, C.head_dim, kBox>(
            maps.q, shared.q_full[consumer], shared.sQ[consumer],
            walk.row0 + consumer * kWarpgroupRows, walk.head, walk.batch);
      }
    } else {
      load_v(at_v, tile + 1);
      at_v = at;
    }
    at.advance();
  }
}

// Decides which consumer may issue GEMMs. Each consumer waits on a named barrier of its own, at
// which the consumer before it arrives.
template <bool kPingPong, int kConsumers>
struct PingPong {
  static constexpr std::uint32_t kFirstBarrier = kConsumers;  // the epilogue has those before
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  int consumer;

  __device__ void wait() const {
    if constexpr (kPingPong) {
      cutlass::arch::NamedBarrier::sync(kThreads, kFirstBarrier + consumer);
    }
  }

  // The last consumer lets the first issue as long as tiles are left.
  __device__ void pass(bool is_last_round) const {
    if (kPingPong && !(is_last_round && consumer == kConsumers - 1)) {
      cutlass::arch::NamedBarrier::arrive(kThreads, kFirstBarrier + (consumer + 1) % kConsumers);
    }
  }

  __device__ void begin(bool has_rounds) const {
    if (consumer == kConsumers - 1) {
      pass(!has_rounds);
    }
  }
};

// A consumer: one warpgroup, which computes its 64 rows.
template <AttnConfig C, Options kOptions>
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
  const PingPong<kOptions.pingpong, consumers(C)> ping_pong{consumer};
  RingPosition<C.stages> at;
  const auto finish = [&] {
    normalize<MmaPv>(p, walk, row0, rO, cO, state);
    store_output<MmaPv>(maps.o, walk, row0, tOrO,
                        T::tile(shared.sQ[consumer], typename T::LayoutQ{}), thread, consumer);
  };
  if (walk.kv_tiles == 0) {
    return finish();
  }

  // The first step, over the last key tile, computes P.
  int tile = walk.kv_tiles - 1;
  shared.q_full[consumer].wait(0);
  shared.k.wait(at);
  wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
  shared.k.release(at);
  mask(rS, cS, keys, row0, tile * C.bc);
  softmax_step<MmaQk>(rS, state, scale_log2, correction);
  round_to_16_bits(tSrS, rP);

  // A step: it adds P V of the tile at hand to O, and computes P of the tile before it.
  const auto step = [&](auto is_masked) {
    --tile;
    const RingPosition<C.stages> at_v = at;
    at.advance();
    ping_pong.wait();
    shared.k.wait(at);
    if constexpr (kOptions.overlap) {
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      shared.v.wait(at_v);
      wgmma_issue<true>(MmaPv{}, tOrP, tOrV(_, _, _, at_v.stage), tOrO);
      ping_pong.pass(tile == 0);
      wgmma_wait<1>(tSrS);
      shared.k.release(at);
    } else {
      shared.v.wait(at_v);
      wgmma_issue<true>(MmaPv{}, tOrP, tOrV(_, _, _, at_v.stage), tOrO);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      ping_pong.pass(tile == 0);
      wgmma_wait<1>(tOrO);
      shared.v.release(at_v);
      wgmma_wait<0>(tSrS);
      shared.k.release(at);
    }
    if constexpr (decltype(is_masked)::value) {
      mask(rS, cS, keys, row0, tile * C.bc);
    }
    softmax_step<MmaQk>(rS, state, scale_log2, correction);
    if constexpr (kOptions.overlap) {
      if constexpr (!kOptions.pingpong) {  // with ping-pong, another's GEMMs fill the wait
        wait_no_earlier_than(state.l[0] + state.l[1]);
      }
      wgmma_wait<0>(tOrO);
      shared.v.release(at_v);
    }
    scale_rows(rO, correction);
    round_to_16_bits(tSrS, rP);
  };
  ping_pong.begin(tile > 0);
  while (tile > walk.full_tiles) {
    step(true_type{});
  }
  while (tile > 0) {
    step(false_type{});
  }

  shared.v.wait(at);
  wgmma<true>(MmaPv{}, tOrP, tOrV(_, _, _, at.stage), tOrO);
  finish();
}

template <int kHeadDim, bool kPingPong, bool kOverlap>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k6(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  const TileWalk walk = tile_walk(p, C, blockIdx.x);

  if (threadIdx.x == 0) {
    constexpr int kConsumerWarps = consumers(C) * kWarpgroupThreads / 32;
    for (TmaBarrier& full : shared.q_full) {
      full.init(1);
    }
    shared.k.init(kConsumerWarps);
    shared.v.init(kConsumerWarps);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  run_roles<consumers(C)>(
      [&](int) {
        if (threadIdx.x == 0 && walk.kv_tiles > 0) {
          produce<C>(shared, maps, walk);
        }
      },
      [&](int consumer) {
        consume<C, Options{kPingPong, kOverlap}>(shared, p, maps, walk, consumer);
      });
}

template <Options kOptions>
void launch_k6(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128, 256>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = config(kHeadDim);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride,
                         int rows) {
      return encode_tensor_map(
          base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride, rows, TmaSwizzle::b128));
    };
    const TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride, kWarpgroupRows),
                          .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride, kConfig.bc),
                          .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride, kConfig.bc),
                          .o = map(p.o, p.q_len, p.heads, p.o_stride, kWarpgroupRows)};
    launch<k6<kHeadDim, kOptions.pingpong, kOptions.overlap>>(
        tile_count(p, kConfig), kConfig.threads, sizeof(SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace k6

void launch_k6_pingpong(const AttentionParams& p, Stream stream) {
  k6::launch_k6<k6::Options{.pingpong = true, .overlap = false}>(p, stream);
}
void launch_k6_overlap(const AttentionParams& p, Stream stream) {
  k6::launch_k6<k6::Options{.pingpong = false, .overlap = true}>(p, stream);
}
void launch_k6(const AttentionParams& p, Stream stream) {
  k6::launch_k6<k6::Options{.pingpong = true, .overlap = true}>(p, stream);
}

}  // namespace tilewright::cuda
