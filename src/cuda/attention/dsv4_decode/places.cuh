// Where the rows of a unit's keys lie. A stretch of key tiles is looked up at once, so that
// memory's latency is paid once and not tile by tile. What memory says stays in SMEM, and with it
// rows are found without another access.
#pragma once

#include <cute/arch/copy_sm80.hpp>

#include "cuda/attention/dsv4_decode/configs.hpp"
#include "cuda/attention/dsv4_decode/rows.cuh"
#include "cuda/attention/dsv4_decode/unit.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kStretchTiles = kOnePartTiles;
static_assert(kStretchTiles % kPairTiles == 0);
inline constexpr int kNoRow = -1;

// Of each key of a stretch: its slot if it is one of a list, its page if it is one of a range, or
// kNoRow.
struct Places {
  int of[kStretchTiles][kTileKeys];
};

// The format of a source's rows, which is one of kDsv4Formats[kFormats].
template <int kFormats>
__device__ KvRowFormat format_of(const Params& p, int source) {
  constexpr Dsv4Formats kTaken = kDsv4Formats[kFormats];
  return kTaken.has_one()        ? kTaken.first()
         : source == kWindow     ? p.window.format
         : source == kCompressed ? p.compressed.format
                                 : KvRowFormat::bf16;
}
__device__ inline const Scope& scope_of(const Params& p, int source) {
  return source == kWindow ? p.window : p.compressed;
}

// The row of a range's key, counted through the request's pages.
__device__ inline int row_in_pages(const Launch& launch, const Scope& scope, int source,
                                   int position) {
  return scope.ring > 0 ? position - position / launch.ring[source] * scope.ring : position;
}

__device__ inline bool is_list(const Params& p, int source) {
  return source != kFresh && scope_of(p, source).keys == Scope::Keys::list;
}

// Of a key: where memory has its slot or page, or what is known without.
struct LookUp {
  const int* at = nullptr;
  int known = kNoRow;
};

// `begin` is the position of the source's first key.
__device__ inline LookUp look_up(const Params& p, const Launch& launch, const Unit& unit,
                                 int source, int key, int begin) {
  if (key >= unit.keys[source]) {
    return {};
  }
  if (source == kFresh) {
    return {.known = 0};
  }
  const Scope& scope = scope_of(p, source);
  if (scope.keys == Scope::Keys::list) {
    return {scope.indices + at(scope.indices_stride, unit.request, unit.token0) + key};
  }
  if (unit.may_have_gaps[source] && !is_seen(unit, source, begin + key)) {
    return {};
  }
  const int index = row_in_pages(launch, scope, source, begin + key) / launch.page_size[source];
  if (index >= scope.max_pages) {
    return {};
  }
  if (scope.block_table == nullptr) {
    return {.known = unit.request};
  }
  return {scope.block_table + static_cast<unsigned>(unit.request) * scope.table_stride + index};
}

// A key's slot or page, or kNoRow where the cache has no such.
__device__ inline int checked(const Params& p, const Launch& launch, int source, int place) {
  if (source == kFresh || place < 0) {
    return max(place, kNoRow);
  }
  const Scope& scope = scope_of(p, source);
  const int page = scope.keys == Scope::Keys::list ? place / launch.page_size[source] : place;
  return page < scope.pages ? place : kNoRow;
}

// Asks for the places of tiles [first, last). The block's first kThreads threads call it, and then
// check_places().
template <int kThreads>
__device__ inline void ask_for_places(Places& places, const Params& p, const Launch& launch,
                                      const Unit& unit, int first, int last) {
  const int end = (last - first) * kTileKeys;
  const SourceEnds sources(unit);
#pragma unroll 1
  for (int i = this_thread(); i < end; i += kThreads) {
    const TileAt tile = sources.tile_at(first + i / kTileKeys);
    const LookUp its =
        look_up(p, launch, unit, tile.source, tile.key0 + i % kTileKeys, unit.begin[tile.source]);
    int& place = places.of[i / kTileKeys][i % kTileKeys];
    if (its.at != nullptr) {
      cute::SM80_CP_ASYNC_CACHEALWAYS<int>::copy(*its.at, place);
    } else {
      place = its.known;
    }
  }
}

// Waits for what this thread has asked for, and checks it.
template <int kThreads>
__device__ inline void check_places(Places& places, const Params& p, const Launch& launch,
                                    const Unit& unit, int first, int last) {
  const int end = (last - first) * kTileKeys;
  const SourceEnds sources(unit);
  cute::cp_async_wait<0>();
#pragma unroll 1
  for (int i = this_thread(); i < end; i += kThreads) {
    int& place = places.of[i / kTileKeys][i % kTileKeys];
    place = checked(p, launch, sources.tile_at(first + i / kTileKeys).source, place);
  }
}

// Where the row of a key lies that is in `place`, of a row with these parts. `begin` is the
// position of the source's first key.
__device__ inline RowAt row_at(const Params& p, const Launch& launch, const Unit& unit, int source,
                               int key, int place, const KvRowParts& parts, int begin) {
  if (place == kNoRow) {
    return {};
  }
  if (source == kFresh) {
    const auto* const rows = static_cast<const std::uint16_t*>(p.fresh.rows);
    const int token = unit.token0 - unit.fresh0 + key;
    return {reinterpret_cast<const std::uint8_t*>(rows + at(p.fresh.stride, unit.request, token))};
  }
  const Scope& scope = scope_of(p, source);
  const Divisor& page_size = launch.page_size[source];
  const bool is_slot = scope.keys == Scope::Keys::list;
  const int rows = is_slot ? place : row_in_pages(launch, scope, source, begin + key);
  const int pages = rows / page_size;
  const auto row = static_cast<unsigned>(rows - pages * page_size);
  const auto page = static_cast<unsigned>(is_slot ? pages : place);
  const auto* const first = static_cast<const std::uint8_t*>(scope.rows) + page * scope.page_bytes;
  const std::uint8_t* const data = first + row * scope.row_bytes;
  return {data, parts.has_planes
                    ? first + page_size * scope.row_bytes + std::int64_t{row} * parts.scales_bytes
                    : data + parts.data_bytes()};
}

// Bit k: there is a row for key k of a tile, which has these places. All lanes of a warp call it.
__device__ inline std::uint64_t rows_that_exist(const int (&places)[kTileKeys]) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t low = __ballot_sync(0xffffffffu, places[lane] != kNoRow);
  const std::uint32_t high = __ballot_sync(0xffffffffu, places[lane + 32] != kNoRow);
  return std::uint64_t{high} << 32 | low;
}

}  // namespace tilewright::cuda::dsv4
