// Flash: the production forward attention (kernel flash).
//
// New here, over K6: blocks are persistent. A block computes one tile of query rows after another.
// While its consumers compute a tile, other warps load the first keys of the next tile and store
// the O of the previous one. The features (masks, soft cap, sinks, packed sequences, splits,
// un-normalised O) are chosen at run time. A key tile that needs neither mask nor soft cap takes a
// step without their code. A problem with no feature beyond a causal mask runs a kernel that is
// compiled without the others, and one without a soft cap a kernel without that (problem_kind.cuh).
// A consumer skips key tiles that its rows do not see.
//
// Source    FlashAttention-3 paper, sections 3.1 and 3.2; attention sinks: Xiao et al., 2023.
// Tiles     configs.hpp: Br = 64 rows for each of 1 to 3 consumers; Bc = 64 to 176 keys.
// SMEM      sQ Br x D, sK stages x Bc x D, sV stages x Bc x Dv, sO up to Br x Dv, 16-bit.
// Registers 40 for a thread of the producer and 232 for one of a consumer, or 32 and 160 with three
//           consumers. Of a consumer's, Bc / 2 hold S, Bc / 4 hold P and Dv / 2 hold O.
//
//   warp 0, a thread  load: K, Q, then K and V alternately, as soon as a stage is free (TMA)
//   warp 1            schedule_tiles: finds the next tile, by the block's index or by a ticket
//   warp 2            clear_unseen: writes zeros over values that no query sees; it mostly idles
//   warp 3, a thread  store: O, while the consumers compute the next tile (TMA)
//   consumers         K6's loop: issue QK(j), PV(j+1) | softmax of j | seldom: scale O. Key tile j
//                     runs from the last to the first. The consumers take turns (ping-pong)
//
// In a cluster, two blocks need the same keys. Each loads half of every K and V tile, for both.
//
// Layouts   128-byte swizzle, 64 columns a TMA load; 64-byte swizzle and 32 columns if D = 96.
// Worklog   docs/worklog/flash.md
#pragma once

#include "cuda/attention/blocks/dense_sequences.cuh"
#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/blocks/problem_kind.cuh"
#include "cuda/attention/flash/configs.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace flash {

using namespace cute;

// Config kIndex of the table.
template <int kIndex, typename Element>
using ConfigOf = FlashConfigOf<kFlashConfigs[kIndex], Element>;

template <typename Config>
using SharedStorage = FlashStorage<Config, FlashTile>;

using TensorMaps = FlashTensorMaps;

// One thread loads all that the consumers read, in the order in which they read it: each V tile
// comes one tile later than its K tile.
template <typename Config, bool kIsPlain>
__device__ void load(SharedStorage<Config>& shared, const TensorMaps& maps) {
  constexpr FlashConfig C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  typename Config::PositionK at_k;
  typename Config::PositionV at_v;
  RingPosition<1> at_q;
  typename SharedStorage<Config>::TilePosition at_tile;

  const auto load_k = [&](const FlashTile& tile, int j) {
    TmaBarrier& full = shared.k.acquire(at_k, sizeof(shared.sK[0]));
    tma_load_shared_tile<C.cluster, C.bc, C.head_dim, kBox>(
        maps.k, full, shared.sK[at_k.stage], tile.kv_start + j * C.bc, tile.kv_head, tile.kv_batch);
  };
  const auto load_v = [&](const FlashTile& tile, int j) {
    TmaBarrier& full = !kIsPlain && has_unseen<C>(tile, j) ? shared.uncleared[at_v.stage]
                                                           : shared.v.full[at_v.stage];
    shared.v.acquire(at_v, full, sizeof(shared.sV[0]));
    tma_load_shared_tile<C.cluster, C.bc, C.value_dim, kBox>(
        maps.v, full, shared.sV[at_v.stage], tile.kv_start + j * C.bc, tile.kv_head, tile.kv_batch);
  };

  while (true) {
    const FlashTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    const int last = tile.kv_end - 1;
    const int announced = max(min(last, tile.kv_first + kTilesAhead), tile.kv_first - 1);
#pragma unroll 1  // each load is in the code once, which takes few registers
    for (int j = last; j >= tile.kv_first - 1; --j) {
      if (j == announced) {
        shared.tiles.want_next(at_tile);
      }
      if (last < tile.kv_first) {
        break;  // no key is seen: there is nothing to load
      }
      if (j >= tile.kv_first) {
        load_k(tile, j);
      }
      if (j == last) {
        load_q(shared, maps.q, tile, at_q);
        at_q.advance();
      } else {
        load_v(tile, j + 1);
        at_v.advance();
      }
      if (j >= tile.kv_first) {
        at_k.advance();
      }
    }
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

template <int kIndex, typename Element, ProblemKind kKind>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element>::kThreads, 1)
    flash(const __grid_constant__ AttentionParams params, const __grid_constant__ TensorMaps maps,
          const __grid_constant__ FlashSchedule schedule) {
  decltype(auto) p = with_constants<kKind>(params);
  constexpr bool kIsPlain = kKind == ProblemKind::plain;
  using Config = ConfigOf<kIndex, Element>;
  constexpr bool kIsCluster = Config::C.cluster > 1;
  const DenseSequences sequences(p);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const bool may_clear =
      !kIsPlain && (p.kv_lengths.cu_seqlens || p.kv_lengths.used || p.window.left < p.kv_len);

  if (threadIdx.x == 32) {  // another thread than the one that sets up barriers
    prefetch(maps, p.statistics.max == nullptr);
  }
  if (threadIdx.x == 0) {
    shared.init(may_clear);
  }
  // Waits until the barriers are set up, in all blocks of the cluster.
  kIsCluster ? cluster_sync() : __syncthreads();

  run_roles<Config::kConsumers>(
      [&](int warp) {
        if (warp == 0 && threadIdx.x == 0) {
          load<Config, kIsPlain>(shared, maps);
        } else if (warp == 1) {
          schedule_tiles(shared, sequences, schedule);
        } else if (warp == 2 && may_clear) {
          clear_unseen(shared,
                       [](auto* sV, int first, int end) { clear_rows<Config>(sV, first, end); });
        } else if (warp == 3 && threadIdx.x % 32 == 0) {
          store(shared, p, maps.o);
        }
      },
      [&](int consumer) { consume(shared, p, consumer); });
  if constexpr (kIsCluster) {
    cluster_sync();  // no block ends while another still writes to its SMEM
  }
}

}  // namespace flash
}  // namespace tilewright::cuda
