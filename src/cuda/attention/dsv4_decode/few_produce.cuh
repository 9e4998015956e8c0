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
#include "cuda/attention/dsv4_decode/held_row.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kFewLocated = 2;  // tiles: the one that is loaded, and the next one
using FewKeyTile = KeyTileOf<2, kFewLocated>;
inline constexpr int kFewTileWarps = 8;
static_assert(kFewTileWarps * kPassKeys == kTileKeys);

// A lane's share of a row of each tile.
template <KvRowFormat kFormat>
class FewRow : public HeldRow<kFormat, FewKeyTile, FewRow<kFormat>> {
  using Base = HeldRow<kFormat, FewKeyTile, FewRow>;
  using Base::job_, Base::to_;

 public:
  __device__ FewRow(const FewKeyTile& to, const Params& p, const Launch& launch, const Job& job)
      : Base(to, p, launch, job),
        key_(this_thread() / 32 % kFewTileWarps * kPassKeys + this_thread() % 32 / 4),
        place_(to.keys.tiles[FewKeyTile::number()][0], key_ / kPassKeys * kPassKeys) {}

  // Finds where the row of a tile lies. From tile `end` on there is none.
  __device__ __forceinline__ void locate(int tile, int end) const {
    const RowAt row = Base::template find<false>(tile, end, key_);
    RowAt& to = located(tile);
    if (this_thread() % 4 == 0) {
      to = row;
    }
    __syncwarp();
  }

  __device__ RowAt& located(int tile) const {
    return to_.located()[pair_of(job_, tile) % kFewLocated * kTileKeys + key_];
  }
  __device__ __forceinline__ void put(int block, const SixteenValues& values) const {
    place_.store(block, 0, values);
  }
  // Gives a quarter that the warp has stored to the consumers.
  __device__ __forceinline__ void give(int quarter) const {
    cutlass::arch::fence_view_async_shared();  // WGMMA sees it
    arrive(to_.full(quarter));
  }

 private:
  int key_;  // of a tile, this lane's
  LanePlace place_;
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
