// The warps that load K and V tiles: a page's rows at a time, by TMA. They load tiles of 16 bits
// for the consumers to read, or E4M3 tiles, of which others make those.
#pragma once

#include "cuda/attention/blocks/box_places.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/sequences.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {
namespace prefill {

using Places = SharedBoxPlaces<-1>;  // key tiles come from the last to the first

// A launch's schedule.
struct Launch {
  FlashSchedule schedule;
  CacheBoxes boxes;
  Divisor kv_heads;
  int others_tokens;  // a packed sequence of at most so many tokens is another launch's
  bool joins;         // the launch before lets this one run beside it
};

// A block sets itself up: one thread initialises its SMEM.
template <typename Init>
__device__ __forceinline__ void set_up(const Params& p, const FlashTensorMaps& maps,
                                       const Launch& launch, const Init& init) {
  if (threadIdx.x == 0) {
    init();
  } else if (threadIdx.x == 32) {
    flash::prefetch(maps, p.statistics.max == nullptr);
  }
  let_next_launch_start();
  __syncthreads();
  if (!launch.joins) {
    wait_for_launch_before();
  }
}

// The columns of a TMA load: as many as a swizzle is wide, or those of whole rows of E4M3.
template <typename Config, typename Element>
constexpr int box_columns(int head_dim) {
  return sizeof(Element) == 1 ? head_dim : Config::Tiles::kBoxColumns;
}

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
  // The next box's place is read early where a box takes several loads. At D = 64 it takes one, and
  // there are no registers; a box of E4M3 takes one, too.
  constexpr bool kLooksAhead = kHeadDim > kBox;
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

// One warp loads K into a ring's stages, and, if it has 16 bits, Q behind the first K tile of each
// tile.
template <typename Storage, int kStages, typename Element, int kElements>
__device__ void load_k(Storage& shared, TmaRing<kStages>& ring,
                       Element (&stages)[kStages][kElements], const Params& p, const Launch& launch,
                       const FlashTensorMaps& maps) {
  constexpr auto C = Storage::C;
  constexpr int kBox = box_columns<typename Storage::Config, Element>(C.head_dim);
  const bool is_leader = threadIdx.x % 32 == 0;
  const bool loads_q = sizeof(Element) == 2 || p.dtype != DType::e4m3;
  RingPosition<kStages> at;
  RingPosition<1> at_q;
  typename Storage::TilePosition at_tile;
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
      load_keys<C.bc, C.head_dim, kBox>(ring, at, ring.full[at.stage], maps.k, stages[at.stage],
                                        launch.boxes, places, tile, j);
      at.advance();
      if (j == last && loads_q) {
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

// One warp loads V into a ring's stages. It writes zeros over rows that no query sees, before the
// consumers may read. What E4M3 tiles have there is left: their NaN count as numbers.
template <typename Storage, int kStages, typename Element, int kElements>
__device__ void load_v(Storage& shared, TmaRing<kStages>& ring,
                       Element (&stages)[kStages][kElements], const Params& p, const Launch& launch,
                       const CUtensorMap& map) {
  using Config = typename Storage::Config;
  constexpr auto C = Config::C;
  constexpr int kBox = box_columns<Config, Element>(C.value_dim);
  RingPosition<kStages> at;
  typename Storage::TilePosition at_tile;
  std::uint32_t phases = 0;  // of `uncleared`: a bit for each stage
  while (true) {
    const CacheTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    Places places({p.rows, launch.boxes, tile.sequence, tile.kv_batch}, shared.places[1]);
#pragma unroll 1
    for (int j = tile.kv_end - 1; j >= tile.kv_first; --j) {
      const bool is_cleared = sizeof(Element) == 2 && flash::has_unseen<C>(tile, j);
      TmaBarrier& full = is_cleared ? shared.uncleared[at.stage] : ring.full[at.stage];
      load_keys<C.bc, C.value_dim, kBox>(ring, at, full, map, stages[at.stage], launch.boxes,
                                         places, tile, j);
      if constexpr (sizeof(Element) == 2) {
        if (is_cleared) {
          full.wait(phases >> at.stage & 1);
          phases ^= 1u << at.stage;
          flash::clear_rows<Config>(stages[at.stage], tile.seen_first - j * C.bc,
                                    tile.seen_end - j * C.bc);
          if (threadIdx.x % 32 == 0) {
            ring.full[at.stage].arrive();
          }
        }
      }
      at.advance();
    }
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

}  // namespace prefill
}  // namespace tilewright::cuda
