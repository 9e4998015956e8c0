// Prefill: attention of many new tokens, such as a chunk of a prompt, over KV caches (kernel
// prefill).
//
// New here, over flash: K and V come through a block table, a page's rows at a time. The lanes of a
// warp find where these lie, and one of them issues the loads. K and V have a warp each, since
// neither's place in SMEM waits for the other's. V has a stage more if there is room: its stages
// are needed again as soon as K's, but they are free later. All else is flash's: the consumers, the
// order of tiles, the store of O. Lengths come from memory, so that a captured graph may be
// replayed with others.
//
// Source    flash.cuh.
// Tiles     configs.hpp: Br = 128 rows of one head, 64 for each of two consumers; Bc = 64 or 128.
// SMEM      sQ Br x D, sK stages x Bc x D, sV v_stages x Bc x Dv, sO up to Br x Dv, 16-bit.
// Registers 40 for a thread of the producer and 232 for one of a consumer. Of a consumer's, Bc / 2
//           hold S, Bc / 4 hold P and Dv / 2 hold O.
//
//   warp 0            load_k: K tiles, and Q (TMA)
//   warp 1            schedule_tiles: finds the next tile by a ticket
//   warp 2            load_v: V tiles, likewise; writes zeros over rows that no query sees
//   warp 3, a thread  store: O, while the consumers compute the next tile (TMA)
//   consumers         issue QK(j), PV(j+1) | softmax of j | seldom: scale O. Key tile j runs from
//                     the last to the first. The consumers take turns (ping-pong)
//
// Layouts   128-byte swizzle, 64 columns a TMA load; 64-byte swizzle and 32 columns if D = 96.
// Limits    Packed sequences of few tokens may be left to the decode kernel (kernel.cpp).
// Worklog   docs/worklog/prefill.md
#pragma once

#include "cuda/attention/blocks/box_places.cuh"
#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/configs.hpp"
#include "cuda/attention/prefill/sequences.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace prefill {

using Places = SharedBoxPlaces<-1>;  // key tiles come from the last to the first

// Config kIndex of the table.
template <int kIndex, typename Element>
using ConfigOf = FlashConfigOf<kPrefillConfigs[kIndex], Element>;

template <typename Config>
struct SharedStorage : FlashStorage<Config, CacheTile> {
  BoxPlace places[2][32];  // for the warps that load K and V
};

// A launch's schedule.
struct Launch {
  FlashSchedule schedule;
  CacheBoxes boxes;
  int others_tokens;  // a packed sequence of at most so many tokens is another launch's
  bool joins;         // the launch before lets this one run beside it
};

// A warp loads key tile j into stage `at`, whose bytes `full` counts. Boxes without a key that is
// seen are left out, since their pages may not exist. One thread issues all loads: a load's
// operands are the warp's, so that threads would issue theirs by turns, which takes longer.
template <int kBc, int kHeadDim, int kBox, typename Ring, typename Position, typename Element>
__device__ __forceinline__ void load_keys(Ring& ring, const Position& at, TmaBarrier& full,
                                          const CUtensorMap& map, Element* stage,
                                          const CacheBoxes& boxes, Places& places,
                                          const CacheTile& tile, int j) {
  const BoxRange range = boxes.of_tile(j, kBc, tile.seen_first, tile.seen_end);
  if (threadIdx.x % 32 == 0) {
    ring.acquire(at, full, (range.count() << boxes.rows_log2) * kHeadDim * sizeof(Element));
  }
  __syncwarp();
  constexpr bool kLooksAhead = kHeadDim > kBox;  // for which D = 64 has no registers
  const int head = tile.kv_head;
  for (int chunk = (range.end - 1) / 32; chunk >= range.first / 32; --chunk) {
    places.take(chunk);
    if (cute::elect_one_sync()) {
      const int end = min(range.end, 32 * (chunk + 1));
      int box = max(range.first, 32 * chunk);
      BoxPlace place = places[box];
#pragma unroll 1
      for (; box < end; ++box) {
        const BoxPlace next = kLooksAhead ? places[box + 1] : place;
        load_box<kBc, kHeadDim, kBox>(map, full, stage, (box << boxes.rows_log2) - j * kBc,
                                      place.row, head, place.page);
        place = kLooksAhead ? next : places[box + 1];
      }
    }
    __syncwarp();
  }
}

// One warp loads K, and Q behind the first K tile of each tile.
template <typename Config>
__device__ void load_k(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                       const FlashTensorMaps& maps) {
  constexpr auto C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  const bool is_leader = threadIdx.x % 32 == 0;
  typename Config::PositionK at;
  RingPosition<1> at_q;
  typename SharedStorage<Config>::TilePosition at_tile;
  while (true) {
    const CacheTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    Places places({p.rows, launch.boxes, tile.sequence, tile.kv_batch}, shared.places[0]);
    const int last = tile.kv_end - 1;
    const int announced = min(last, tile.kv_first + flash::kTilesAhead);
#pragma unroll 1
    for (int j = last; j >= tile.kv_first; --j) {
      if (j == announced && is_leader) {
        shared.tiles.want_next(at_tile);
      }
      load_keys<C.bc, C.head_dim, kBox>(shared.k, at, shared.k.full[at.stage], maps.k,
                                        shared.sK[at.stage], launch.boxes, places, tile, j);
      at.advance();
      if (j == last) {
        if (is_leader) {
          flash::load_q(shared, maps.q, tile, at_q);
        }
        at_q.advance();
      }
    }
    if (last < tile.kv_first && is_leader) {  // no key is seen: there is nothing to load
      shared.tiles.want_next(at_tile);
    }
    __syncwarp();  // no lane reads the tile any more
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

// One warp loads V. It writes zeros over rows that no query sees, before the consumers may read.
template <typename Config>
__device__ void load_v(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                       const CUtensorMap& map) {
  constexpr auto C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  typename Config::PositionV at;
  typename SharedStorage<Config>::TilePosition at_tile;
  std::uint32_t phases = 0;  // of `uncleared`: a bit for each stage
  while (true) {
    const CacheTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    Places places({p.rows, launch.boxes, tile.sequence, tile.kv_batch}, shared.places[1]);
#pragma unroll 1
    for (int j = tile.kv_end - 1; j >= tile.kv_first; --j) {
      const bool is_cleared = flash::has_unseen<C>(tile, j);
      TmaBarrier& full = is_cleared ? shared.uncleared[at.stage] : shared.v.full[at.stage];
      load_keys<C.bc, C.value_dim, kBox>(shared.v, at, full, map, shared.sV[at.stage], launch.boxes,
                                         places, tile, j);
      if (is_cleared) {
        full.wait(phases >> at.stage & 1);
        phases ^= 1u << at.stage;
        flash::clear_rows<Config>(shared.sV[at.stage], tile.seen_first - j * C.bc,
                                  tile.seen_end - j * C.bc);
        if (threadIdx.x % 32 == 0) {
          shared.v.full[at.stage].arrive();
        }
      }
      at.advance();
    }
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

template <int kIndex, typename Element>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element>::kThreads, 1)
    prefill(const __grid_constant__ Params p, const __grid_constant__ FlashTensorMaps maps,
            const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const CacheSequences sequences(p, launch.others_tokens);
  if (threadIdx.x == 0) {
    shared.init(true);
  } else if (threadIdx.x == 32) {
    flash::prefetch(maps, p.statistics.max == nullptr);
  }
  let_next_launch_start();
  __syncthreads();
  if (!launch.joins) {
    wait_for_launch_before();
  }

  run_roles<Config::kConsumers>(
      [&](int warp) {
        if (warp == 0) {
          load_k<Config>(shared, p, launch, maps);
        } else if (warp == 1) {
          flash::schedule_tiles(shared, sequences, launch.schedule, launch.joins);
        } else if (warp == 2) {
          load_v<Config>(shared, p, launch, maps.v);
        } else if (threadIdx.x % 32 == 0) {
          flash::store(shared, p, maps.o);
        }
      },
      [&](int consumer) { flash::consume(shared, p, consumer); });
  wait_for_launch_before();
}

}  // namespace prefill
}  // namespace tilewright::cuda
