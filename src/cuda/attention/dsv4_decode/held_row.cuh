// A row that a lane of a producer holds whole on its way to SMEM, as four neighbouring lanes take
// it: of twins (twin_produce.cuh), and where an item has few rows (few_produce.cuh).
#pragma once

#include "cuda/attention/dsv4_decode/lane_row.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"

namespace tilewright::cuda::dsv4 {

// `Derived` derives from it, and has
//   RowAt& located(int tile) const                          where the lane's row of a tile lies
//   void put(int block, const SixteenValues& values) const  in the lane's place in a column block
//   void give(int quarter) const                            when the warp has put a quarter
template <KvRowFormat kFormat, typename To, typename Derived>
class HeldRow {
 public:
  __device__ HeldRow(const To& to, const Params& p, const Launch& launch, const Job& job)
      : to_(to), job_(job), p_(p), launch_(launch) {}

  // Loads the row of a tile.
  __device__ __forceinline__ void load(int tile) { row_.load(Its(derived().located(tile))); }

  // Stores it, quarter by quarter, as they are given back. A quarter is widened ahead: the first
  // one before its place is free, the others while the stores of the one before are under way.
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
        derived().put(block_of_quarter(quarter, i), ready[i]);
      }
      if constexpr (quarter + 1 < kQuarters) {
        widen(quarter + 1, ready);
      }
      derived().give(quarter);
    });
  }

 protected:
  // Finds where the row of a tile's key lies, and may bring it to L2. From tile `end` on there is
  // none.
  template <bool kBrings>
  __device__ __forceinline__ RowAt find(int tile, int end, int key) const {
    const int place = tile < end ? job_.places.of[tile - job_.first_tile][key] : kNoRow;
    RowAt row;
    if (place != kNoRow) {
      const TileAt at = tile_at(job_.unit, tile);
      row = row_at(p_, launch_, job_.unit, at.source, at.key0 + key, place, parts_of(kFormat),
                   job_.unit.begin[at.source]);
      if constexpr (kBrings) {
        WholeRow<kFormat>::bring(row);
      }
    }
    return row;
  }

  const To& to_;
  const Job& job_;

 private:
  using Its = LaneRow<kFormat>;

  __device__ const Derived& derived() const { return static_cast<const Derived&>(*this); }

  __device__ __forceinline__ void widen(int quarter, SixteenValues (&to)[kConsumers]) const {
#pragma unroll
    for (int i = 0; i < kConsumers; ++i) {
      to[i] = row_.values(block_of_quarter(quarter, i));
    }
  }

  // Stores a row of a warp of which some row has a scale that exceeds.
  __device__ __forceinline__ void store_exceeding(int tile) const {
    const Its its(derived().located(tile));
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      to_.wait(quarter, pair_of(job_, tile));
#pragma unroll 1
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        derived().put(block, its.values(block));
      }
      derived().give(quarter);
    }
  }

  const Params& p_;
  const Launch& launch_;
  WholeRow<kFormat> row_;
};

}  // namespace tilewright::cuda::dsv4
