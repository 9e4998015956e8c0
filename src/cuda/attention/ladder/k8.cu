// K8: FP8 that is accurate (rungs k8, k8_2, k8_4, k8_8, k8_never).
//
// New here, over K7: descales of blocks of 64 or 128 rows, as rotate_quantize() computes them after
// it has spread the outliers of Q and K over the head dim; V that comes transposed, so that the
// kernel does not transpose it; and sums in two levels. The tensor cores keep fewer bits of a sum
// than FP32. So P V of a key tile begins at 0, and FP32 instructions add it to O: after every tile
// (k8), every 2, 4 or 8 tiles, or never. The addition takes the place of the instruction that
// scales O, and costs none: O = O * correction + P V.
//
// Source    FlashAttention-3 paper, section 3.3; promotion: DeepSeek-V3 report, section 3.3.2. The
//           order of K's rows and the weights of V's descales are our own.
// Tiles     Br = 128 = 2 x 64, Bc = 128, 384 threads.
// SMEM      sQ 128 x D, sK and sVt stages x 128 x D E4M3, 4 stages, at D = 256 2: 72, 144, 160 KB
//           at D = 64, 128, 256 (+ barriers). A consumer's O takes the place of its Q, a half at a
//           time.
// Registers 24 for a thread of the producer and 240 for one of a consumer. Of a consumer's, 64 hold
//           S, 16 hold P, D / 2 hold O, and as many P V of the last tiles. At D = 256 those are too
//           many: P V is computed in four parts of its columns, of which two at a time are where S
//           will be, and not while S is there.
//
//   a thread          load: K9 Q V9 K8 V8 ... and each tile's descales
//   consumers         K6's loop: QK(j), PV(j+1) issued | softmax j | O = O * factor + PV(j+1)
//   consumers, 256    PV(j+1) in parts, each added to O during the next | QK(j) | softmax j
//
// Layouts   V^T has its keys in order, so that S must have them in another (K7): sK has the tile's
//           even keys, then its odd ones. They come by two tensor maps of every other row.
//           blocks/fp8_layout.cuh. All tiles are swizzled by 128 bytes, Q and K by 64 at D = 64.
// Limits    D = 64, 128 or 256; O in BF16. At D = 256 sums are promoted after every tile or never.
// Worklog   docs/worklog/k8.md
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/block_descales.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/fp8_descale.cuh"
#include "cuda/attention/blocks/fp8_maps.hpp"
#include "cuda/attention/blocks/fp8_output.cuh"
#include "cuda/attention/blocks/fp8_tiles.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/attention/blocks/value_sums.cuh"
#include "cuda/common/copy_async.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace k8 {

using namespace cute;
using block_descales::HeadDescales;
using block_descales::kBlocks;
using Element = float_e4m3_t;

constexpr int kConsumers = 2;                    // warpgroups
constexpr RoleRegisters kRegisters = {24, 240};  // the consumers take more than elsewhere

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim,
          .br = kConsumers * kWarpgroupRows,
          .bc = block_descales::kBc,
          .threads = block_threads(kConsumers),
          .stages = head_dim == 256 ? 2 : 4};
}

// What a key tile's descales come to. V's are taken relative to the largest one so far, `v_scale`:
// P of a block is multiplied by its descale's share of it, and O is in units of it. Shares are at
// least 2^-32, which does not show in FP32.
struct alignas(16) TileDescales {
  float k[kBlocks];
  float p_log2[kBlocks];    // the factor of P: its share, and 2^kP_log2
  float l_weight[kBlocks];  // the shares' inverses: l is a sum without them
  float v_scale;
  float v_correction;  // the v_scale before, in units of this one
};

// The descales of one key tile of a head after another, from the last to the first. One thread
// walks, which has few registers: what it fetches goes to the tile's place at once.
class DescaleWalk {
 public:
  // Asks for the descales of a tile.
  __device__ static void fetch(const AttentionFp8Params& p, const HeadDescales& head, int kv_len,
                               int tile, TileDescales& descales) {
    block_descales::fetch_descales(p, head, kv_len, tile, descales.k, descales.l_weight);
  }

  // Waits for them, and writes what they come to.
  __device__ void finish(TileDescales& descales) {
    wait_for_copies();
    const float v[] = {descales.l_weight[0], descales.l_weight[1]};
    const float before = v_scale_;
    v_scale_ = fmaxf(v_scale_, fmaxf(v[0], v[1]));
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      constexpr float kLeastLog2 = -32.0f;
      const float share = v_scale_ == 0.0f ? 1.0f : __fdividef(v[i], v_scale_);
      const float share_log2 = fmaxf(__log2f(share), kLeastLog2);
      descales.p_log2[i] = kP_log2 + share_log2;
      descales.l_weight[i] = exp2_approx(-share_log2);
    }
    descales.v_scale = v_scale_;
    descales.v_correction = before == v_scale_ ? 1.0f : __fdividef(before, v_scale_);
  }

 private:
  float v_scale_ = 0.0f;
};

template <AttnConfig C>
using Tiles = Fp8Tiles<C.head_dim, C.bc, C.stages>;

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[kConsumers][kWarpgroupRows * C.head_dim];  // (64, D), then O
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];              // (Bc, D, stages)
  alignas(1024) Element sVt[C.stages][C.head_dim * C.bc];             // (D, Bc, stages)
  alignas(128) TmaBarrier q_full[kConsumers];
  TmaRing<C.stages> k;
  TmaRing<C.stages> vt;
  block_descales::DescaleRing<TileDescales, C.stages> descales;
};
static_assert(sizeof(SharedStorage<config(64)>) == 73 * 1024);
static_assert(sizeof(SharedStorage<config(128)>) == 145 * 1024);
static_assert(sizeof(SharedStorage<config(256)>) == 161 * 1024);

struct TensorMaps {
  CUtensorMap q, k_even, k_odd, vt, o;
};

// One thread loads all that the consumers read.
template <AttnConfig C>
__device__ void load(SharedStorage<C>& shared, const AttentionFp8Params& p, const TensorMaps& maps,
                     const TileWalk& walk) {
  constexpr int kBox = Tiles<C>::kBoxColumns;
  const HeadDescales head = HeadDescales::of(p, walk.batch, walk.kv_head);
  DescaleWalk descales;
  RingPosition<C.stages> at;
  if (walk.kv_tiles > 0) {
    descales.fetch(p, head, p.kv_len, walk.kv_tiles - 1, shared.descales.at(at));
  }
#pragma unroll 1  // each load is in the code once, which takes few registers
  for (int tile = walk.kv_tiles - 1; tile >= 0; --tile) {
    descales.finish(shared.descales.at(at));
    TmaBarrier& k_full = shared.k.acquire(at, sizeof(shared.sK[0]));
    load_box<C.bc, C.head_dim, kBox>(maps.k_even, k_full, shared.sK[at.stage], 0, tile * C.bc / 2,
                                     walk.kv_head, walk.batch);
    load_box<C.bc, C.head_dim, kBox>(maps.k_odd, k_full, shared.sK[at.stage], C.bc / 2,
                                     tile * C.bc / 2, walk.kv_head, walk.batch);
    if (tile == walk.kv_tiles - 1) {
#pragma unroll 1
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        shared.q_full[consumer].arrive_and_expect_tx(sizeof(shared.sQ[0]));
        tma_load_tile<kWarpgroupRows, C.head_dim, kBox>(
            maps.q, shared.q_full[consumer], shared.sQ[consumer],
            walk.row0 + consumer * kWarpgroupRows, walk.head, walk.batch);
      }
    }
    TmaBarrier& vt_full = shared.vt.acquire(at, sizeof(shared.sVt[0]));
    constexpr auto kNoHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
    SM90_TMA_LOAD_4D::copy(&maps.vt, reinterpret_cast<std::uint64_t*>(&vt_full), kNoHint,
                           shared.sVt[at.stage], tile * C.bc, 0, walk.kv_head, walk.batch);
    at.advance();
    if (tile > 0) {
      descales.fetch(p, head, p.kv_len, tile - 1, shared.descales.at(at));
    }
  }
}

// A consumer: one warpgroup, which computes its 64 rows.
template <AttnConfig C, int kInterval>
__device__ void consume(SharedStorage<C>& shared, const AttentionFp8Params& p,
                        const TensorMaps& maps, const TileWalk& walk, int consumer) {
  using T = Tiles<C>;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr int kParts = kInterval > 0 && C.head_dim == 256 ? 4 : 1;
  using Sums = ValueSums<T, C.head_dim, kInterval, kParts>;
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int row0 = walk.row0 + consumer * kWarpgroupRows;

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const auto mma_v = typename Sums::MmaPart{}.get_slice(0);
  const Tensor tOrV = mma_v.make_fragment_B(
      mma_v.partition_B(T::tile(shared.sVt[0], typename T::LayoutVt{})));  // (.., parts, .., stage)
  Tensor tSrS = T::scores();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread));
  constexpr auto kRegistersOfP = T::template score_registers<KeyOrder::kByKeys>();
  Tensor tOrP = make_tensor<Element>(shape(kRegistersOfP));  // (values of A, 1, steps)
  Sums sums;

  RowState<Sums::kRows> state;
  float correction[Sums::kRows];
  const KeyRange keys(p);
  const float q_scale_log2 =
      kLog2e * block_descales::query_scale(p, walk.batch, walk.head, min(row0, p.q_len - 1));
  const PingPong<kConsumers> ping_pong{consumer};
  RingPosition<C.stages> at;
  const auto finish = [&](float v_scale) {
    constexpr float kLn2 = 1.0f / kLog2e;
    Tensor rO = by_rows<MmaPv>(sums.tOrO);
    normalize_fp8<MmaPv>(p, walk, row0, kLn2, v_scale, rO, cO, state);
    constexpr std::uint32_t kFirstBarrier = 1 + kConsumers;  // behind those of ping-pong
    store_fp8_output<C.head_dim>(maps.o, walk, row0, sums.tOrO, shared.sQ[consumer], thread,
                                 kFirstBarrier + consumer);
  };
  if (walk.kv_tiles == 0) {
    return finish(1.0f);
  }

  // The first step, over the last key tile, computes P.
  int tile = walk.kv_tiles - 1;
  shared.q_full[consumer].wait(0);
  shared.k.wait(at);
  wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
  shared.k.release(at);
  const auto mask_tile = [&] {
    mask_reordered(
        rS, cS, [](int) { return 0; },
        [&](int row) { return keys.limit(row0 + row) - tile * C.bc; });
  };
  const auto weigh_tile = [&] {
    const TileDescales& descales = shared.descales.at(at);
    float scale_log2[kBlocks];
    block_descales::find_scales<true>(descales.k, q_scale_log2, scale_log2);
#pragma unroll
    for (int row = 0; row < Sums::kRows; ++row) {
      block_descales::move_maximum<MmaQk>(rS, row, state.m, scale_log2, correction);
      state.l[row] *= correction[row];
      correction[row] *= descales.v_correction;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float sum = block_descales::weigh(rS, row, block, state.m[row], scale_log2[block],
                                                descales.p_log2[block]);
        state.l[row] = fmaf(sum, descales.l_weight[block], state.l[row]);
      }
    }
  };
  mask_tile();
  weigh_tile();
  round_to_e4m3(tSrS, kRegistersOfP, tOrP);

  // A step: it adds P V of the tile at hand to O, and computes P of the tile before it.
  const auto step = [&](auto is_masked) {
    --tile;
    const RingPosition<C.stages> at_v = at;
    at.advance();
    ping_pong.wait();
    if constexpr (kParts == 1) {
      shared.k.wait(at);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      shared.vt.wait(at_v);
      sums.issue(tOrP, tOrV(_, 0, _, at_v.stage));
      ping_pong.pass();
      wgmma_wait<1>(tSrS);
    } else {
      shared.vt.wait(at_v);
      sums.add(tOrP, tOrV(_, _, _, at_v.stage));
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
    weigh_tile();
    if constexpr (kParts == 1) {
      sums.wait();
      shared.vt.release(at_v);
      sums.next_units(correction);
    } else {
      sums.set_units(correction);
    }
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
  sums.add(tOrP, tOrV(_, _, _, at.stage));
  finish(shared.descales.at(at).v_scale);
}

template <int kHeadDim, int kInterval>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k8(const __grid_constant__ AttentionFp8Params p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  const TileWalk walk = tile_walk(p, C, blockIdx.x);

  if (threadIdx.x == 0) {
    constexpr int kConsumerWarps = kConsumers * kWarpgroupThreads / 32;
    for (TmaBarrier& full : shared.q_full) {
      full.init(1);
    }
    shared.k.init(kConsumerWarps);
    shared.vt.init(kConsumerWarps);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  run_roles<kConsumers, kRegisters>(
      [&](int) {
        if (threadIdx.x == 0) {
          load<C>(shared, p, maps, walk);
        }
      },
      [&](int consumer) { consume<C, kInterval>(shared, p, maps, walk, consumer); });
}

template <int kInterval, int... kHeadDims>
void launch_k8(const AttentionFp8Params& p, Stream stream) {
  dispatch_head_dim<kHeadDims...>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = config(kHeadDim);
    constexpr TmaSwizzle kSwizzle = kHeadDim == 64 ? TmaSwizzle::b64 : TmaSwizzle::b128;
    const auto map_keys = [&](int parity) {
      const KeyRows keys = every_other_key(p, p.batch, parity, kConfig.bc / 2, kSwizzle);
      return encode_tensor_map(keys.base, keys.spec);
    };
    const TensorMaps maps{
        .q = encode_tensor_map(p.q, tile_map_spec(p.batch, p.q_len, p.heads, kHeadDim, p.q_stride,
                                                  kWarpgroupRows, kSwizzle, 1)),
        .k_even = map_keys(0),
        .k_odd = map_keys(1),
        .vt = encode_tensor_map(p.v, transposed_values(p, p.batch)),
        .o = encode_tensor_map(
            p.o, tile_map_spec(p.batch, p.q_len, p.heads, kHeadDim, p.o_stride, kWarpgroupRows,
                               Fp8OutputHalf<kHeadDim>::kSwizzle))};
    launch<k8<kHeadDim, kInterval>>(tile_count(p, kConfig), kConfig.threads,
                                    sizeof(SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace k8

void launch_k8(const AttentionFp8Params& p, Stream stream) {
  k8::launch_k8<1, 64, 128, 256>(p, stream);
}
void launch_k8_2(const AttentionFp8Params& p, Stream stream) {
  k8::launch_k8<2, 64, 128>(p, stream);
}
void launch_k8_4(const AttentionFp8Params& p, Stream stream) {
  k8::launch_k8<4, 64, 128>(p, stream);
}
void launch_k8_8(const AttentionFp8Params& p, Stream stream) {
  k8::launch_k8<8, 64, 128>(p, stream);
}
void launch_k8_never(const AttentionFp8Params& p, Stream stream) {
  k8::launch_k8<0, 64, 128, 256>(p, stream);
}

}  // namespace tilewright::cuda
