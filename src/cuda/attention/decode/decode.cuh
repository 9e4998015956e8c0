// Decode: attention of few new tokens over long KV caches (kernel decode).
//
// Time goes into reading K and V once, so that everything serves to keep loads under way: tiles in
// flight in every SM, and an even share of all keys for every block, whatever the lengths of the
// sequences. Query heads that share a KV head, and new tokens, are rows of one tile of 64.
//
// Source    FlashDecoding; stream-K (Osama et al., 2023) for the even shares.
// Tiles     configs.hpp: 64 rows; Bc = 64 keys. schedule.hpp says which block computes what.
// SMEM      sQ 64 x D, sK stages x Bc x D, sV stages x Bc x Dv, 16-bit; sO 64 x Dv, FP32, where a
//           config is for clusters.
// Registers up to 255. Where an SM has two blocks, 64 for a thread of the producer and 192 for one
//           of the consumer. Bc / 2 hold S, Bc / 4 hold P and Dv / 2 hold O.
//
//   warp 0            load_kv: finds the block's parts from the lengths in memory (walk.cuh); loads
//                     K and V tiles, each lane its page's rows (TMA)
//   warp 1, a thread  load_q: Q of each part (TMA)
//   consumer          issue QK(j + 1), PV(j) | softmax of j + 1 | scale O. At a part's end it has
//                     results, or partial ones that are merged with others (results.cuh)
//
// Layouts   128-byte swizzle, 64 columns a TMA load; 64-byte swizzle and 32 columns if D = 96.
// Worklog   docs/worklog/decode.md
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/box_places.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/results.cuh"
#include "cuda/attention/decode/walk.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {
namespace decode {

using namespace cute;

// One warp finds the parts and loads their K and V tiles. Boxes without a key that is seen are left
// out, since their pages may not exist.
template <typename Config>
__device__ void load_kv(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                        const TensorMaps& maps) {
  constexpr DecodeConfig C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  const int box_rows = launch.boxes.rows;
  const int boxes = C.bc / box_rows;  // of a tile
  typename Config::Position at;
  for_each_part(shared.parts, p, launch, [&](const Part& part) {
    BoxPlaces<1> places(p.rows, launch.boxes, part.sequence, part.cache_row);
    for (int j = part.tiles.first; j < part.tiles.end; ++j) {
      const int tile_box = j * boxes;
      const int first = max(part.seen_first / box_rows, tile_box);
      const int end = min(ceil_div(part.seen_end, box_rows), tile_box + boxes);
      if (threadIdx.x % 32 == 0) {
        const int rows = (end - first) * box_rows;
        shared.k.acquire(at, rows * C.head_dim * 2);
        shared.v.acquire(at, rows * C.value_dim * 2);
      }
      __syncwarp();
      for (int chunk = first / 32; chunk <= (end - 1) / 32; ++chunk) {
        places.take(chunk);
        const int box = places.box();
        if (box >= first && box < end) {
          const int tile_row = (box - tile_box) * box_rows;
          load_box<C.bc, C.head_dim, kBox>(maps.k, shared.k.full[at.stage], shared.sK[at.stage],
                                           tile_row, places.row(), part.kv_head, places.page());
          load_box<C.bc, C.value_dim, kBox>(maps.v, shared.v.full[at.stage], shared.sV[at.stage],
                                            tile_row, places.row(), part.kv_head, places.page());
        }
      }
      at.advance();
    }
    __syncwarp();  // no lane reads the part any more
  });
}

// One thread loads the rows of Q: a box of heads and tokens.
template <typename Config>
__device__ void load_q(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                       const CUtensorMap& map) {
  constexpr DecodeConfig C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  constexpr auto kHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
  RingPosition<1> at;
  PartRing::Position at_part;
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    if (part.is_end) {
      break;
    }
    if (part.tiles.first < part.tiles.end) {
      const int rows = launch.shape.tile_heads * launch.shape.tile_tokens;
      TmaBarrier& full = shared.q.acquire(at, rows * C.head_dim * 2);
#pragma unroll
      for (int column = 0; column < C.head_dim; column += kBox) {
        SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                               shared.sQ + column * kWarpgroupRows, column, part.first_head,
                               part.lengths.q_start + part.token0,
                               p.packed_q.cu_seqlens != nullptr ? 0 : part.sequence);
      }
      at.advance();
    }
    shared.parts.release(at_part);
    at_part.advance();
  }
}

// Writes zeros over the rows of a V tile that no query sees: they may be NaN, or another tile's.
// The consumer's threads call it together.
template <typename Config>
__device__ void clear_unseen(typename Config::Element* sV, int first, int end) {
  constexpr DecodeConfig C = Config::C;
  constexpr int kBoxVectors = Config::Tiles::kBoxColumns / 8;  // of 16 bytes, in a row of a box
  auto* const vectors = reinterpret_cast<uint4*>(sV);
  for (int i = threadIdx.x % kWarpgroupThreads; i < C.bc * C.value_dim / 8;
       i += kWarpgroupThreads) {
    const int row = i / kBoxVectors % C.bc;
    if (row < first || row >= end) {
      vectors[i] = uint4{};
    }
  }
  cutlass::arch::fence_view_async_shared();
  sync_consumer();
}

// The consumer: one warpgroup, which computes one part after another.
template <typename Config>
__device__ void consume(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  using Element = typename Config::Element;
  using T = typename Config::Tiles;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr DecodeConfig C = Config::C;
  constexpr int kBc = C.bc;
  const int thread = threadIdx.x % kWarpgroupThreads;

  const Tensor tSrQ = T::operand_q(shared.sQ);
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
  const float scale_log2 = p.softcap > 0.0f ? kLog2e : scale_to_log2(p.scale);
  typename Config::Position at;
  RingPosition<1> at_q;
  PartRing::Position at_part;
  std::uint32_t exchange_phase = 0;
  if constexpr (C.in_clusters) {
    cluster_wait();
  }
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    if (part.is_end) {
      break;
    }
    const CacheKeys keys = launch.shape.keys_of(part.lengths);
    // All rows see the keys [whole_first, whole_end).
    const int whole_first = keys.first(part.token0 + part.tokens - 1);
    const int whole_end = keys.end(part.token0);
    RowState<kRows> rows;
    float factor[kRows];

    const auto softmax = [&](int j) {
      if (p.softcap > 0.0f) {
        cap(rS, p.scale, p.softcap);
      }
      if (j * kBc < whole_first || (j + 1) * kBc > whole_end) {
        const auto token = [&](int row) { return part.token0 + row / launch.shape.tile_heads; };
        mask_outside(
            rS, cS, [&](int row) { return keys.first(token(row)) - j * kBc; },
            [&](int row) { return keys.end(token(row)) - j * kBc; });
      }
      softmax_step<MmaQk>(rS, rows, scale_log2, factor);
    };
    const auto issue_pv = [&](int j, int stage) {
      if (j * kBc < part.seen_first || (j + 1) * kBc > part.seen_end) {
        clear_unseen<Config>(shared.sV[stage], part.seen_first - j * kBc, part.seen_end - j * kBc);
      }
      wgmma_issue<true>(MmaPv{}, tOrP, tOrV(_, _, _, stage), tOrO);
    };

    clear(tOrO);
    int j = part.tiles.first;
    if (j < part.tiles.end) {
      shared.q.wait(at_q);
      shared.k.wait(at);
      wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      shared.k.release(at);
      softmax(j);
      round_to_16_bits(tSrS, rP);
#pragma unroll 1
      for (; j + 1 < part.tiles.end; ++j) {
        const typename Config::Position at_v = at;
        at.advance();
        shared.k.wait(at);
        wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
        shared.v.wait(at_v);
        issue_pv(j, at_v.stage);
        wgmma_wait<1>(tSrS);
        shared.k.release(at);
        softmax(j + 1);
        wgmma_wait<0>(tOrO);
        shared.v.release(at_v);
        scale_rows(rO, factor);
        round_to_16_bits(tSrS, rP);
      }
      shared.q.release(at_q);  // the last GEMM that reads Q has ended
      at_q.advance();
      shared.v.wait(at);
      issue_pv(j, at.stage);
      wgmma_wait<0>(tOrO);
      shared.v.release(at);
      at.advance();
    }

    RowResult result[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      result[i] = {
          .m = rows.m[i] * (scale_log2 / kLog2e), .l = row_sum<MmaPv>(rows.l[i]), .rescale = 1.0f};
    }
    finish_part<Config, MmaPv>(shared, p, launch, part, rO, cO, result, exchange_phase);
    __syncwarp();
    shared.parts.release(at_part);
    at_part.advance();
  }
  if constexpr (C.in_clusters) {
    wait_for_all(shared.exchange.read, exchange_phase ^ 1);  // no block ends while others read
  }
}

template <int kIndex, typename Element>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element>::kThreads,
                                  kDecodeConfigs[kIndex].blocks_per_sm)
    decode(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
           const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  constexpr int kSm_bytes = 228 * 1024;  // each block has 1 KB of its own beside its SMEM
  static_assert(Config::C.blocks_per_sm * (sizeof(shared) + 1024) <= kSm_bytes);
  if (threadIdx.x == 0) {
    shared.q.init(Config::kConsumerWarps);
    shared.k.init(Config::kConsumerWarps);
    shared.v.init(Config::kConsumerWarps);
    shared.parts.init(Config::kConsumerWarps + 1);  // and the warp that loads Q
    if constexpr (Config::C.in_clusters) {
      shared.exchange.written.init(launch.workers.cluster);
      shared.exchange.read.init(launch.workers.cluster);
    }
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 64) {
    prefetch_tma_descriptor(&maps.k);
    prefetch_tma_descriptor(&maps.v);
    prefetch_tma_descriptor(&maps.q);
  }
  let_next_launch_start();
  if constexpr (Config::C.in_clusters) {
    cluster_arrive_relaxed();  // a block's barriers are set up; who uses others' waits for them
  }
  __syncthreads();
  wait_for_launch_before();

  constexpr bool kSharesSm = Config::C.blocks_per_sm > 1;
  const int warp = cutlass::canonical_warp_idx_sync();
  if (warp < kWarpgroupThreads / 32) {
    if constexpr (kSharesSm) {
      cutlass::arch::warpgroup_reg_dealloc<64>();
    }
    if (warp == 0) {
      load_kv<Config>(shared, p, launch, maps);
    } else if (warp == 1 && threadIdx.x % 32 == 0) {
      load_q<Config>(shared, p, launch, maps.q);
    }
    if constexpr (Config::C.in_clusters) {
      __syncwarp();
      cluster_wait();
    }
  } else {
    if constexpr (kSharesSm) {
      cutlass::arch::warpgroup_reg_alloc<192>();
    }
    consume<Config>(shared, p, launch);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
