// K7: FP8 (rung k7).
//
// New here, over K6: Q, K, V and P are E4M3, which the tensor cores multiply at twice the rate. Two
// things change. An 8-bit WGMMA takes both operands K-major only, which V is not: the producer's
// other warps transpose each V tile on the chip. And an accumulator's registers are no longer an
// operand's: the transposition writes the keys in an order in which they are. P is scaled by 2^8,
// so that it uses E4M3's range.
//
// Source    FlashAttention-3 paper, section 3.3; PTX ISA, register fragments of m64nNk32. The rows
//           that alternate in the transposition's stores are our own.
// Tiles     Br = 192 = 3 x 64, at D = 256 128 = 2 x 64; Bc = 128; 512 threads, at D = 256 384.
// SMEM      sQ Br x D, sK, sV and sVt stages x Bc x D E4M3 each, 3 stages, at D = 256 2: 84, 168,
//           224 KB at D = 64, 128, 256 (+ barriers). A consumer's O takes the place of its Q, a
//           half at a time.
// Registers 32 for a thread of the producer and 160 for one of a consumer; at D = 256, 24 and 240.
//           Of a consumer's, 64 hold S, 16 hold P and D / 2 hold O. At D = 128 those are too many:
//           there P V is computed while S is not there, and P lies in its place.
//
//   warp 0, a thread  load: K9 Q V9 K8 V8 ...    (each waits until its stage is empty)
//   warps 1 to 3      transpose: sV -> registers -> sVt, one tile after another
//   consumers         K6's loop, with V from sVt
//   consumers, 128    PV(j+1) | QK(j) issued | softmax j
//
// Layouts   In every 16 keys, sVt has them in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15:
//
//             S, lane c       | 2c 2c+1 | 8+2c 8+2c+1 |      keys, of every 16
//             A, lane c       | 4c 4c+1 | 4c+2 4c+3   |      columns of the operand
//             sVt, a row      |  keys of lane 0 | lane 1 | lane 2 | lane 3 |
//
//           blocks/fp8_layout.cuh says it for all registers. Tiles are swizzled by 128 bytes, Q, K
//           and V at D = 64 by 64.
// Limits    D = 64, 128 or 256; descales for the tensor, or for each sequence and key/value head; O
//           in BF16. P V is summed in the tensor cores' accumulator over all keys: K8 does not.
// Worklog   docs/worklog/k7.md
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/fp8_descale.cuh"
#include "cuda/attention/blocks/fp8_output.cuh"
#include "cuda/attention/blocks/fp8_tiles.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"
#include "cuda/common/wgmma_wait.cuh"

namespace tilewright::cuda {
namespace k7 {

using namespace cute;
using Element = float_e4m3_t;

constexpr int kTransposers = 3;  // warps

constexpr AttnConfig config(int head_dim) {
  const int consumers = head_dim == 256 ? 2 : 3;
  return {.head_dim = head_dim,
          .br = consumers * kWarpgroupRows,
          .bc = 128,
          .threads = block_threads(consumers),
          .stages = head_dim == 256 ? 2 : 3};
}

// O takes so many at D = 256 that the producer leaves the consumers more than it does elsewhere.
constexpr RoleRegisters registers(int head_dim) {
  return head_dim == 256 ? RoleRegisters{24, 240} : role_registers(config(head_dim).br / 64);
}

constexpr int consumers(const AttnConfig& c) { return c.br / kWarpgroupRows; }

template <AttnConfig C>
using Tiles = Fp8Tiles<C.head_dim, C.bc, C.stages>;

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[consumers(C)][kWarpgroupRows * C.head_dim];  // (64, D), then O
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];                // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.head_dim];                // (Bc, D, stages)
  alignas(1024) Element sVt[C.stages][C.head_dim * C.bc];               // (D, Bc, stages)
  alignas(128) TmaBarrier q_full[consumers(C)];
  TmaRing<C.stages> k;
  TmaRing<C.stages> v;
  TmaRing<C.stages> vt;
};
static_assert(sizeof(SharedStorage<config(64)>) == 85 * 1024);
static_assert(sizeof(SharedStorage<config(128)>) == 169 * 1024);
static_assert(sizeof(SharedStorage<config(256)>) == 225 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v, o;
};

// One thread loads all that the consumers and the transposing warps read.
template <AttnConfig C>
__device__ void load(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk) {
  constexpr int kBox = Tiles<C>::kBoxColumns;
  RingPosition<C.stages> at;
#pragma unroll 1  // each load is in the code once, which takes few registers
  for (int tile = walk.kv_tiles - 1; tile >= 0; --tile, at.advance()) {
    TmaBarrier& k_full = shared.k.acquire(at, sizeof(shared.sK[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.k, k_full, shared.sK[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
    if (tile == walk.kv_tiles - 1) {
#pragma unroll 1
      for (int consumer = 0; consumer < consumers(C); ++consumer) {
        shared.q_full[consumer].arrive_and_expect_tx(sizeof(shared.sQ[0]));
        tma_load_tile<kWarpgroupRows, C.head_dim, kBox>(
            maps.q, shared.q_full[consumer], shared.sQ[consumer],
            walk.row0 + consumer * kWarpgroupRows, walk.head, walk.batch);
      }
    }
    TmaBarrier& v_full = shared.v.acquire(at, sizeof(shared.sV[0]));
    tma_load_tile<C.bc, C.head_dim, kBox>(maps.v, v_full, shared.sV[at.stage], tile * C.bc,
                                          walk.kv_head, walk.batch);
  }
}

// Transposes 32 keys of V and the columns of one load, 16 columns at a time. Lane l comes with the
// address of key l, and gets keys 2c and 2c + 1 of every eight (c = l % 4), of the columns 2u and
// 2u + 1 (u = l / 4), in four words of the bytes (key, column), (key, column + 1),
// (key + 1, column), (key + 1, column + 1). Two words make four keys of one column: those that lane
// c's registers of P have. Lanes 0 to 15 store even columns first, and the others odd ones, so that
// the eight rows of a store, which are two rows apart, lie in different banks.
//
// Both addresses are computed once, and the others follow: a swizzle moves 16 columns of a row
// together, by XOR, and rows of V^T that are 16 apart have the same swizzle.
template <AttnConfig C>
__device__ void transpose_keys(const Element* sV, Element* sVt, unsigned key0, unsigned column0) {
  using LayoutV = typename Tiles<C>::LayoutV;
  using LayoutVt = typename Tiles<C>::LayoutVt;
  constexpr unsigned kColumns = 16;
  constexpr unsigned kNextRows = LayoutVt{}(_16{}, _0{}, _0{});
  constexpr std::uint32_t kEven = 0x6420;
  constexpr std::uint32_t kOdd = 0x7531;
  const unsigned lane = threadIdx.x % 32;
  const bool is_even_first = lane < 16;
  const std::uint32_t first = is_even_first ? kEven : kOdd;
  const std::uint32_t second = is_even_first ? kOdd : kEven;
  // A store has four matrices: (first, second) of 16 keys, then of the next 16. Lane l gives the
  // address of row l % 8 of matrix l / 8.
  const unsigned row = lane % 8;
  const unsigned is_second = lane / 8 % 2;
  const unsigned column = 2 * row + (is_second ^ (row / 4));
  const unsigned from = LayoutV{}(key0 + lane, column0);
  const unsigned to = LayoutVt{}(column0 + column, key0 + lane / 16 * 16, 0);
#pragma unroll
  for (unsigned i = 0; i < Tiles<C>::kBoxColumns / kColumns; ++i) {
    std::uint32_t keys[4];
    SM75_U16x8_LDSM_T::copy(reinterpret_cast<const uint128_t&>(sV[from ^ i * kColumns]), keys[0],
                            keys[1], keys[2], keys[3]);
    SM90_U32x4_STSM_N::copy(
        __byte_perm(keys[0], keys[1], first), __byte_perm(keys[0], keys[1], second),
        __byte_perm(keys[2], keys[3], first), __byte_perm(keys[2], keys[3], second),
        reinterpret_cast<uint128_t&>(sVt[to + i * kNextRows]));
  }
}

// A transposing warp, number `warp` of them: its share of every V tile.
template <AttnConfig C>
__device__ void transpose(SharedStorage<C>& shared, const TileWalk& walk, int warp) {
  constexpr int kKeys = 32;
  constexpr int kColumns = Tiles<C>::kBoxColumns;
  constexpr int kBoxes = C.head_dim / kColumns;
  constexpr int kParts = C.bc / kKeys * kBoxes;
  RingPosition<C.stages> at;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, at.advance()) {
    shared.v.wait(at);
    shared.vt.wait_until_empty(at);
#pragma unroll 1
    for (int part = warp; part < kParts; part += kTransposers) {
      transpose_keys<C>(shared.sV[at.stage], shared.sVt[at.stage], part / kBoxes * kKeys,
                        part % kBoxes * kColumns);
    }
    cutlass::arch::fence_view_async_shared();  // WGMMA reads what was written
    __syncwarp();
    shared.v.release(at);
    shared.vt.put(at);
  }
}

// A consumer: one warpgroup, which computes its 64 rows.
template <AttnConfig C>
__device__ void consume(SharedStorage<C>& shared, const AttentionFp8Params& p,
                        const TensorMaps& maps, const TileWalk& walk, int consumer) {
  using T = Tiles<C>;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr bool kOverlaps = C.head_dim != 128;  // P V and this consumer's softmax
  constexpr int kChains = kOverlaps ? 1 : 2;     // of comparisons
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int row0 = walk.row0 + consumer * kWarpgroupRows;

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const Tensor tOrV = T::operand_v(shared.sVt[0]);
  Tensor tSrS = T::scores();
  Tensor tOrO = T::output();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  Tensor rO = by_rows<MmaPv>(tOrO);  // (rows, columns)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread));
  constexpr auto kRegistersOfP = T::template score_registers<KeyOrder::kByValues>();
  Tensor tOrP = make_tensor<Element>(shape(kRegistersOfP));  // (values of A, 1, steps)

  constexpr int kRows = size<0>(rS);
  RowState<kRows> state;
  float correction[kRows];
  clear(tOrO);
  const KeyRange keys(p);
  const float scale = p.scale * descale_at(p.q_descale, walk.batch, 0, walk.head) *
                      descale_at(p.k_descale, walk.batch, 0, walk.kv_head);
  const float scale_log2 = scale_to_log2(scale);
  const PingPong<consumers(C)> ping_pong{consumer};
  RingPosition<C.stages> at;
  const auto finish = [&] {
    normalize_fp8<MmaPv>(p, walk, row0, scale, descale_at(p.v_descale, walk.batch, 0, walk.kv_head),
                         rO, cO, state);
    constexpr std::uint32_t kFirstBarrier = 1 + consumers(C);  // behind those of ping-pong
    store_fp8_output<C.head_dim>(maps.o, walk, row0, tOrO, shared.sQ[consumer], thread,
                                 kFirstBarrier + consumer);
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
  const auto mask_tile = [&] {
    mask_outside(
        rS, cS, [](int) { return 0; },
        [&](int row) { return keys.limit(row0 + row) - tile * C.bc; });
  };
  mask_tile();
  softmax_step<MmaQk>(rS, state, scale_log2, correction, kP_log2);
  round_to_e4m3(tSrS, kRegistersOfP, tOrP);

  // A step: it adds P V of the tile at hand to O, and computes P of the tile before it.
  const auto step = [&](auto is_masked) {
    --tile;
    const RingPosition<C.stages> at_v = at;
    at.advance();
    ping_pong.wait();
    if constexpr (kOverlaps) {
      shared.k.wait(at);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      shared.vt.wait(at_v);
      wgmma_issue<true>(MmaPv{}, tOrP, tOrV(_, _, _, at_v.stage), tOrO);
      ping_pong.pass();
      wgmma_wait<1>(tSrS);
    } else {
      shared.vt.wait(at_v);
      wgmma<true>(MmaPv{}, tOrP, tOrV(_, _, _, at_v.stage), tOrO);
      shared.vt.release(at_v);
      shared.k.wait(at);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      ping_pong.pass();
      wgmma_wait<0>(tSrS);
    }
    shared.k.release(at);
    if constexpr (decltype(is_masked)::value) {
      mask_tile();
    }
    softmax_step<MmaQk, kChains>(rS, state, scale_log2, correction, kP_log2);
    if constexpr (kOverlaps) {
      wait_no_earlier_than_store(state.l[0]);
      wgmma_wait<0>(tOrO);
      shared.vt.release(at_v);
    }
    scale_rows(rO, correction);
    round_to_e4m3(tSrS, kRegistersOfP, tOrP);
  };
  ping_pong.begin();
  while (tile > walk.full_tiles) {
    step(true_type{});
  }
  while (tile > 0) {
    step(false_type{});
  }
  ping_pong.end();

  shared.vt.wait(at);
  wgmma<true>(MmaPv{}, tOrP, tOrV(_, _, _, at.stage), tOrO);
  finish();
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k7(const __grid_constant__ AttentionFp8Params p, const __grid_constant__ TensorMaps maps) {
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
    shared.v.init(kTransposers);
    shared.vt.init(kConsumerWarps, kTransposers);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  run_roles<consumers(C), registers(kHeadDim)>(
      [&](int warp) {
        if (warp > 0) {
          transpose<C>(shared, walk, warp - 1);
        } else if (threadIdx.x == 0) {
          load<C>(shared, maps, walk);
        }
      },
      [&](int consumer) { consume<C>(shared, p, maps, walk, consumer); });
}

}  // namespace k7

void launch_k7(const AttentionFp8Params& p, Stream stream) {
  dispatch_head_dim<64, 128, 256>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k7::config(kHeadDim);
    constexpr TmaSwizzle kSwizzle = kHeadDim == 64 ? TmaSwizzle::b64 : TmaSwizzle::b128;
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride,
                         int rows) {
      return encode_tensor_map(
          base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride, rows, kSwizzle, 1));
    };
    const k7::TensorMaps maps{
        .q = map(p.q, p.q_len, p.heads, p.q_stride, kWarpgroupRows),
        .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride, kConfig.bc),
        .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride, kConfig.bc),
        .o = encode_tensor_map(
            p.o, tile_map_spec(p.batch, p.q_len, p.heads, kHeadDim, p.o_stride, kWarpgroupRows,
                               Fp8OutputHalf<kHeadDim>::kSwizzle))};
    launch<k7::k7<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                             sizeof(k7::SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace tilewright::cuda
