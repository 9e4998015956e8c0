// The warps that load K and V tiles: by TMA, a page's rows at a time, where pages fit; or else row
// by row, in pieces of 16 bytes (cp.async).
#pragma once

#include "cuda/attention/blocks/box_places.cuh"
#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/prefetch.cuh"
#include "cuda/common/copy_async.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace decode {

// K or V as the loading warp sees it.
template <typename Config>
struct CacheSide {
  const CUtensorMap& map;
  const void* base;
  const OuterStrides& stride;  // batch: of a page, or of a whole sequence
  const Descales& descale;
  TmaRing<Config::kStages>& ring;
  bool asks;            // for another part, ahead of a part's last two tiles
  std::uint8_t* tiles;  // stage 0's
  float* descales;      // likewise
};

// The arrivals that complete a stage's loads: a TMA load's bytes have one, and each lane has one if
// it copies rows or descales.
__device__ inline int arrivals_of(const Launch& launch, const Descales& descale) {
  const bool has_rows = !launch.loads_boxes || descale.per == Descales::Per::row;
  return (launch.loads_boxes ? 1 : 0) + (has_rows ? 32 : 0);
}

// This lane arrives at the barrier when its copies are there.
__device__ __forceinline__ void arrive_after_copies(TmaBarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&barrier))
      : "memory");
}

// Where a box lies in the caches.
struct CacheBox {
  int row;  // of the page, the box's first
  int kv_head;
  int page;
};

// Loads a box of rows to `target`, its place in a tile.
template <typename Config, typename Tile>
__device__ __forceinline__ void load_box(const CacheSide<Config>& side, const CacheBox& box,
                                         TmaBarrier& full, std::uint8_t* target) {
  constexpr int kBoxColumns = Tile::kBox_bytes / 2;  // TMA counts in 16 bits
  // Keys leave L2 first, so that other things stay there, such as lengths, tables and parts'
  // results.
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
#pragma unroll
  for (int i = 0; i < Tile::kBoxes; ++i) {
    cute::SM90_TMA_LOAD_4D::copy(&side.map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                                 target + i * kDecodeTileKeys * Tile::kBox_bytes, i * kBoxColumns,
                                 box.row, box.kv_head, box.page);
  }
}

// Loads tile j, which is one box.
template <typename Config, typename Tile>
__device__ __forceinline__ void load_tile(const CacheSide<Config>& side, const Part& part,
                                          const BoxPlaces<1>& places, int j, TmaBarrier& full,
                                          std::uint8_t* tile) {
  if (threadIdx.x % 32 == j % 32) {
    full.arrive_and_expect_tx(Tile::kTile_bytes);
    load_box<Config, Tile>(side, {places.row(), part.kv_head, places.page()}, full, tile);
  }
}

// Loads the boxes of tile j that have keys which are seen: others' pages may not exist. Each is a
// whole page. One lane asks for all of them: lanes that ask for one each do so one after the other,
// which takes longer.
template <typename Config, typename Tile>
__device__ __forceinline__ void load_boxes(const CacheSide<Config>& side, const Launch& launch,
                                           const Part& part, BoxPlaces<1>& places, int j,
                                           TmaBarrier& full, std::uint8_t* tile) {
  constexpr int kMostBoxes = kDecodeTileKeys / kLeastBoxRows;
  constexpr int kAtOnce = Config::C.swaps ? kMostBoxes : 1;  // as far as there are registers
  const CacheBoxes& boxes = launch.boxes;
  const BoxRange range = boxes.of_tile(j, kDecodeTileKeys, part.seen_first, part.seen_end);
  const int first = j * kDecodeTileKeys >> boxes.rows_log2;  // of the tile
  places.take(first / 32);
  const bool asks = cute::elect_one_sync();
  if (asks) {
    full.arrive_and_expect_tx((range.count() << boxes.rows_log2) * Tile::kRow_bytes);
  }
#pragma unroll 1
  for (int box = first; box < first + kMostBoxes; box += kAtOnce) {
    int pages[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      pages[i] = __shfl_sync(0xffffffffu, places.page(), (box + i) % 32u);
    }
    if (asks) {
      const int kv_head = part.kv_head;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (range.contains(box + i)) {
          load_box<Config, Tile>(side, {0, kv_head, pages[i]}, full,
                                 tile + ((box + i - first) << boxes.rows_log2) * Tile::kBox_bytes);
        }
      }
    }
  }
}

// Where a row of the caches lies. One that no query sees is not read, and a page that does not
// exist reads as zeros.
struct RowPlace {
  int page;
  int row;  // of the page
  bool is_seen;
  bool exists;

  __device__ std::int64_t offset(const OuterStrides& stride, int head) const {
    return exists ? page * stride.batch + row * stride.seq + head * stride.head : 0;
  }
};

// A tile's rows, of which a lane has one of each half. The next tile's entries of the table are
// asked for before this one's rows, as they would arrive behind these.
using RowPlaces = BoxPlaces<1, kDecodeTileKeys / 32>;

// Of this lane's row of a half.
__device__ inline RowPlace row_place(const Params& p, const Part& part, const RowPlaces& places,
                                     int half) {
  const int key = places.box(half);
  const int page = places.page(half);
  const bool is_seen = key >= part.seen_first && key < part.seen_end;
  return {.page = page,
          .row = places.row(half),
          .is_seen = is_seen,
          .exists = is_seen && page >= 0 && page < p.rows.cache_rows};
}

// The rows of one head, in chunks of 16 bytes, if 32 bits can count the chunks.
struct HeadRows {
  const std::uint8_t* base;
  std::uint32_t page_chunks;  // from a page to the next one
  std::uint32_t row_chunks;   // from a row to the next one
  bool are_countable;
};

template <typename Config>
__device__ HeadRows rows_of_head(const Params& p, const CacheSide<Config>& side, int head) {
  constexpr int kChunk = 16 / Config::kCache_bytes;  // values
  const OuterStrides& stride = side.stride;
  const int page_rows = p.rows.page_size > 0 ? p.rows.page_size : p.rows.capacity;
  const std::int64_t last = (p.rows.cache_rows - 1) * stride.batch + (page_rows - 1) * stride.seq;
  return {.base = static_cast<const std::uint8_t*>(side.base) +
                  head * stride.head * Config::kCache_bytes,
          .page_chunks = static_cast<std::uint32_t>(stride.batch / kChunk),
          .row_chunks = static_cast<std::uint32_t>(stride.seq / kChunk),
          .are_countable = stride.batch >= 0 && stride.seq >= 0 && last / kChunk >> 32 == 0};
}

// Copies 32 rows of a tile, all of which exist, from its row `row0` on. Each lane knows where one
// lies: `own` chunks behind `base`, a number that one shuffle passes on. A lane copies a chunk of
// every kStep-th row. Sources come before copies, which the compiler keeps in their order, so that
// shuffles overlap.
template <typename Tile>
__device__ __forceinline__ void copy_whole_rows(const std::uint8_t* base, std::uint32_t own,
                                                int row0, std::uint32_t tile) {
  constexpr int kStep = 32 / Tile::kChunks;
  constexpr int kSwizzleRows = 8;  // after which the swizzle repeats
  constexpr int kCopies = kSwizzleRows / kStep;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = lane / Tile::kChunks;
  const int chunk = lane % Tile::kChunks;
  const std::uint8_t* of_lane = base + 16 * chunk;
  asm volatile("" : "+l"(of_lane));  // a sum that is kept: sources take one instruction, not three
  std::uint32_t targets[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    targets[i] = tile + Tile::offset(row0 + kStep * i + first, chunk);
  }
#pragma unroll
  for (int row = 0; row < 32; row += kSwizzleRows) {
    std::uint32_t sources[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      sources[i] = __shfl_sync(0xffffffffu, own, row + kStep * i + first);
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async<16>(targets[i] + row * Tile::kBox_bytes, of_lane + 16ull * sources[i], true);
    }
  }
}

// Copies 32 rows of a tile, from its row `row0` on. Each lane knows the place of one.
template <typename Config, typename Tile>
__device__ __forceinline__ void copy_rows(const CacheSide<Config>& side, const Part& part,
                                          const HeadRows& rows, const RowPlace& place, int row0,
                                          std::uint8_t* tile) {
  constexpr long long kZeros = -1;
  constexpr long long kNothing = -2;
  const std::uint32_t target = cute::cast_smem_ptr_to_uint(tile);
  if constexpr (32 % Tile::kChunks == 0) {
    if (__all_sync(0xffffffffu, place.exists && rows.are_countable)) {
      const std::uint32_t own = static_cast<std::uint32_t>(place.page) * rows.page_chunks +
                                static_cast<std::uint32_t>(place.row) * rows.row_chunks;
      return copy_whole_rows<Tile>(rows.base, own, row0, target);
    }
  }
  const auto* const base = static_cast<const std::uint8_t*>(side.base);
  const long long own = !place.is_seen  ? kNothing
                        : !place.exists ? kZeros
                                        : place.offset(side.stride, part.kv_head);
#pragma unroll 2
  for (int i = 0; i < Tile::kChunks; ++i) {
    const int index = 32 * i + static_cast<int>(threadIdx.x % 32);
    const int row = index / Tile::kChunks;
    const int chunk = index % Tile::kChunks;
    const long long offset = __shfl_sync(0xffffffffu, own, row);
    if (offset != kNothing) {
      const bool exists = offset != kZeros;
      copy_async<16>(target + Tile::offset(row0 + row, chunk),
                     exists ? base + offset * Config::kCache_bytes + chunk * 16 : base, exists);
    }
  }
}

// Loads a part's tiles, and their rows' descales where they have some. Calls ask() ahead of its
// last two. A whole warp calls it.
template <typename Config, typename Tile, typename Ask>
__device__ __forceinline__ void load_part(const Params& p, const Launch& launch,
                                          const CacheSide<Config>& side, const Part& part,
                                          typename Config::Position& at, const Ask& ask) {
  using Shared = SharedStorage<Config>;
  const bool has_descales = Config::kIsE4m3 && side.descale.per == Descales::Per::row;
  BoxPlaces<1> boxes(p.rows, launch.boxes, part.sequence, part.cache_row);
  RowPlaces rows(p.rows, launch.rows, part.sequence, part.cache_row);
  const HeadRows head_rows = rows_of_head(p, side, part.kv_head);
  const bool loads_rows = Config::kMayLoadRows && !launch.loads_boxes;
  const bool are_boxes = !loads_rows && launch.boxes.rows() == kDecodeTileKeys;
  const int last_ones = max(part.tiles.end - 2, part.tiles.first);
  if (part.tiles.first == part.tiles.end) {
    ask();
  }
  for (int j = part.tiles.first; j < part.tiles.end; ++j) {
    if (j == last_ones) {
      ask();
    }
    std::uint8_t* const tile = side.tiles + at.stage * Shared::kTile_bytes;
    TmaBarrier& full = side.ring.full[at.stage];
    if (are_boxes) {  // the table's entries are on their way while the stage is not free
      boxes.take(j / 32);
    }
    if (loads_rows || has_descales) {
      rows.take(j);
    }
    side.ring.empty[at.stage].wait(at.phase ^ 1);
    if (are_boxes) {
      load_tile<Config, Tile>(side, part, boxes, j, full, tile);
    } else if (!loads_rows) {
      load_boxes<Config, Tile>(side, launch, part, boxes, j, full, tile);
    }
    if (loads_rows || has_descales) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const RowPlace place = row_place(p, part, rows, half);
        if (loads_rows) {
          copy_rows<Config, Tile>(side, part, head_rows, place, 32 * half, tile);
        }
        if (has_descales) {
          float* const target =
              side.descales + at.stage * 2 * kDecodeTileKeys + 32 * half + threadIdx.x % 32;
          copy_async<4>(cute::cast_smem_ptr_to_uint(target),
                        side.descale.data + place.offset(side.descale.stride, part.kv_head),
                        place.exists);
        }
      }
      arrive_after_copies(full);
    }
    at.advance();
  }
}

// Loads the tiles of the block's parts, of K or of V. Before that, while a launch ahead may still
// run and the block's barriers are set up, it brings to L2 those that it guesses to be first. A
// warp calls it.
template <typename Config, typename Tile, typename Wait>
__device__ void load(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                     const CacheSide<Config>& side, const Wait& wait_for_barriers) {
  if (launch.loads_boxes) {
    prefetch_tiles<Tile>(p, launch, side.map);
  } else if constexpr (Config::kMayLoadRows) {
    prefetch_rows<Tile, Config::kCache_bytes>(p, launch, side.base, side.stride);
  }
  wait_for_barriers();
  typename Config::Position at;
  PartRing::Position at_part = leave_empty_part(shared.parts);
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    wait_for_launch_before();
    if (part.is_end) {
      break;
    }
    load_part<Config, Tile>(p, launch, side, part, at, [&] {
      if (Config::kMayTake && side.asks && part.asks && threadIdx.x % 32 == 0) {
        shared.asked.arrive();
      }
    });
    __syncwarp();  // no lane reads the part any more
    shared.parts.release(at_part);
    at_part.advance();
  }
}

// The warp that loads K, or V. Where their rows are as long, both run the same code.
template <typename Config, typename Wait>
__device__ void load_keys_or_values(SharedStorage<Config>& shared, const Params& p,
                                    const Launch& launch, const TensorMaps& maps, bool is_v,
                                    const Wait& wait_for_barriers) {
  using TileK = typename Config::TileK;
  using TileV = typename Config::TileV;
  const CacheSide<Config> side{.map = is_v ? maps.v : maps.k,
                               .base = is_v ? p.v_cache : p.k_cache,
                               .stride = is_v ? p.v_stride : p.k_stride,
                               .descale = is_v ? p.v_descale : p.k_descale,
                               .ring = is_v ? shared.v : shared.k,
                               .asks = !is_v,
                               .tiles = shared.tiles[0] + (is_v ? TileK::kTile_bytes : 0),
                               .descales = shared.descales[0][is_v]};
  if (cute::is_same_v<TileK, TileV> || !is_v) {
    load<Config, TileK>(shared, p, launch, side, wait_for_barriers);
  } else {
    load<Config, TileV>(shared, p, launch, side, wait_for_barriers);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
