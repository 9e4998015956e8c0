// The producers of dsv4_decode where an item has few rows: four warpgroups, two a tile. Consumers
// need few registers there, so that more warps widen rows. A warp takes eight keys of a tile, four
// lanes a key.
//
//   tile t       widen quarter 0 | each quarter q, as it is given back: store q, widen q + 1
//                | load t + 2 | locate t + 4
//
// So a whole row is in registers before its place is free, and is asked for once, without a
// prefetch: four warpgroups have as many rows under way as hide memory's latency.
#pragma once

#include "cuda/attention/dsv4_decode/few_rows.cuh"
#include "cuda/attention/dsv4_decode/lane_row.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kFewLocated = 2;  // tiles: the one that is loaded, and the next one
using FewKeyTile = KeyTileOf<2, kFewLocated>;
inline constexpr int kFewTileWarps = 8;
static_assert(kFewTileWarps * kPassKeys == kTileKeys);

// A lane's share of a row of each tile.
template <KvRowFormat kFormat>
class FewRow {
 public:
  using Its = LaneRow<kFormat>;

  __device__ FewRow(const FewKeyTile& to, const Params& p, const Launch& launch, const Job& job)
      : to_(to),
        p_(p),
        launch_(launch),
        job_(job),
        key_(this_thread() / 32 % kFewTileWarps * kPassKeys + this_thread() % 32 / 4),
        place_(to.keys.tiles[FewKeyTile::number()][0], key_ / kPassKeys * kPassKeys) {}

  // Finds where the row of a tile lies. From tile `end` on there is none.
  __device__ __forceinline__ void locate(int tile, int end) const {
    const int place = tile < end ? job_.places.of[tile - job_.first_tile][key_] : kNoRow;
    RowAt row;
    if (place != kNoRow) {
      const TileAt at = tile_at(job_.unit, tile);
      row = row_at(p_, launch_, job_.unit, at.source, at.key0 + key_, place, parts_of(kFormat),
                   job_.unit.begin[at.source]);
    }
    RowAt& to = located(tile);
    if (this_thread() % 4 == 0) {
      to = row;
    }
    __syncwarp();
  }

  // Loads it.
  __device__ __forceinline__ void load(int tile) { row_.load(Its(located(tile))); }

  // Stores it, quarter by quarter, as they are given back. A quarter is widened ahead of that,
  // while the stores of the one before are under way.
  __device__ __forceinline__ void store(int tile) const {
    if (row_.some_exceed()) {
      return store_exceeding(tile);
    }
    const int pair = pair_of(job_, tile);
    SixteenValues ready[kConsumers];
    widen(0, ready);
    cute::for_each(cute::make_int_sequence<kQuarters>{}, [&](auto quarter) {
      to_.wait(quarter, pair);
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        place_.store(block_of_quarter(quarter, i), 0, ready[i]);
      }
      if constexpr (quarter + 1 < kQuarters) {
        widen(quarter + 1, ready);
      }
      give(quarter);
    });
  }

 private:
  __device__ __forceinline__ void widen(int quarter, SixteenValues (&to)[kConsumers]) const {
#pragma unroll
    for (int i = 0; i < kConsumers; ++i) {
      to[i] = row_.values(block_of_quarter(quarter, i));
    }
  }

  // Stores a row of a warp of which some row has a scale that exceeds.
  __device__ __forceinline__ void store_exceeding(int tile) const {
    const Its its(located(tile));
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      to_.wait(quarter, pair_of(job_, tile));
#pragma unroll 1
      for (int i = 0; i < kConsumers; ++i) {
        const int group = block_of_quarter(quarter, i);
        place_.store(group, 0, its.values(group));
      }
      give(quarter);
    }
  }

  // Gives a quarter that the warp has stored to the consumers.
  __device__ __forceinline__ void give(int quarter) const {
    cutlass::arch::fence_view_async_shared();  // WGMMA sees it
    arrive(to_.full(quarter));
  }

  __device__ RowAt& located(int tile) const {
    return to_.located()[pair_of(job_, tile) % kFewLocated * kTileKeys + key_];
  }

  const FewKeyTile& to_;
  const Params& p_;
  const Launch& launch_;
  const Job& job_;
  int key_;  // of a tile, this lane's
  LanePlace place_;
  WholeRow<kFormat> row_;
};

// A producer brings its tiles of a job.
template <int kFormats>
__device__ __forceinline__ void produce_few(const FewKeyTile& to, const Params& p,
                                            const Launch& launch, const Job& job) {
  int tile = uniform(job.first_tile + FewKeyTile::number());
  while (tile < uniform(job.end_tile)) {
    const int end = run_end<kFormats>(p, job, tile);
    with_format<kFormats>(format_of<kFormats>(p, tile_at(job.unit, tile).source), [&](auto format) {
      FewRow<format.value> row(to, p, launch, job);
      row.locate(tile, end);
      row.load(tile);
      row.locate(tile + kPairTiles, end);
#pragma unroll 1
      for (; tile < end; tile += kPairTiles) {
        row.store(tile);
        row.load(tile + kPairTiles);
        row.locate(tile + 2 * kPairTiles, end);
      }
    });
  }
  pass_absent(to, job, tile);
}

}  // namespace tilewright::cuda::dsv4
