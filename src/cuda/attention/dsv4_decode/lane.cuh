// A lane's part of the loading of key tiles: a warp takes eight keys in a pass, four lanes a key.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/attention/dsv4_decode/job.cuh"
#include "cuda/attention/dsv4_decode/rows.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kPassKeys = 8;

inline constexpr int kPasses = 2;  // of a warp over its keys of a tile
inline constexpr int kTileWarps = kTileKeys / (kPasses * kPassKeys);

// A lane's part of tiles that a warpgroup loads.
template <KvRowFormat kTheFormat>
class Lane {
 public:
  static constexpr KvRowFormat kFormat = kTheFormat;
  using F = Format<kFormat>;
  using Raw = typename F::Raw;

  // The rows of this lane's keys in a tile, pass by pass.
  struct Rows {
    const std::uint8_t* data[kPasses];
    typename F::Scales scales[kPasses];
  };

  __device__ Lane(const Params& p, const Launch& launch, const Job& job)
      : p_(p), launch_(launch), job_(job) {}

  // Those of a tile of the job; from tile `end` on there are none.
  __device__ Rows find(int tile, int end) const {
    Rows rows;
    const TileAt at = tile_at(job_.unit, tile);
    const int thread = this_thread();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = key_of(pass, thread);
      const int place = tile < end ? job_.places.of[tile - job_.first_tile][key] : kNoRow;
      const RowAt row =
          row_at(p_, launch_, job_.unit, at.source, at.key0 + key, place, parts_of(kFormat));
      rows.data[pass] = row.data;
      rows.scales[pass] = F::scales(row.scales, quarter());
    }
    return rows;
  }

  // Brings the warp's rows of a tile to L2: lanes of one half have their data, lanes of the other
  // their scales, if they lie elsewhere.
  __device__ void prefetch(int tile, int end) const {
    constexpr KvRowParts kParts = parts_of(kFormat);
    constexpr int kWarpKeys = kPasses * kPassKeys;
    if (tile >= end) {
      return;
    }
    const int thread = this_thread();
    const int key = thread / 32 % kTileWarps * kWarpKeys + thread % kWarpKeys;
    const TileAt at = tile_at(job_.unit, tile);
    const int place = job_.places.of[tile - job_.first_tile][key];
    if (place == kNoRow) {
      return;
    }
    const RowAt row = row_at(p_, launch_, job_.unit, at.source, at.key0 + key, place, kParts);
    if (thread % 32 < kWarpKeys) {
      cute::SM90_BULK_COPY_G2S::PREFETCH::copy(
          row.data, kParts.has_planes ? kParts.data_bytes() : kParts.row_bytes());
    } else if (kParts.has_planes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row.scales));
    }
  }

  // A group of 64 dims of a pass's row on its way: loaded, and stored to the tile's column block.
  __device__ static Raw load(const Rows& rows, int pass, int group) {
    return F::load(here(rows.data[pass]), group, quarter());
  }
  static constexpr bool kLastIsBf16 = parts_of(kFormat).coded_dims < kKvRowDims;
  __device__ static uint4 load_last(const Rows& rows, int pass) {
    return F::load_last(here(rows.data[pass]), quarter());
  }
  __device__ static void store(Element* block, int pass, int group, const Raw& raw,
                               const Rows& rows) {
    store_values(block, pass, F::widen(raw, group, rows.scales[pass]));
  }
  __device__ static void store_values(Element* block, int pass, const SixteenValues& values) {
    uint4* const low = stored(block, pass);
    *low = values.low;
    low[to_others()] = values.high;
  }
  // What a pass has stored of a row with scales that exceed is to be multiplied again.
  __device__ static void store_rest(Element* block, int pass, int group, const Rows& rows) {
    if constexpr (requires { rows.scales[pass].rest(group); }) {
      if (kLastIsBf16 && group == kGroups - 1) {
        return;  // it has no scale
      }
      uint4* const low = stored(block, pass);
      uint4* const high = low + to_others();
      SixteenValues values{*low, *high};
      values.multiply(rows.scales[pass].rest(group));
      *low = values.low;
      *high = values.high;
    }
  }

  // Copies a group of a pass's row as it is.
  __device__ static void copy(Element* block, int pass, int group, const Rows& rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int vector = 2 * quarter() + i;
      cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(
          *reinterpret_cast<const cute::uint128_t*>(rows.data[pass] + group * 128 + vector * 16),
          *reinterpret_cast<cute::uint128_t*>(
              vector_of(block + rows_before(pass), key_of(0), vector)));
    }
  }

 private:
  // Keeps the compiler from computing further addresses ahead of a loop: no registers are left for
  // them.
  __device__ static const std::uint8_t* here(const std::uint8_t* address) {
    asm volatile("" : "+l"(address));
    return address;
  }
  // The place of this lane's first eight values of a group, and how far behind or before them the
  // others lie.
  __device__ static uint4* stored(Element* block, int pass) {
    return reinterpret_cast<uint4*>(vector_of(block + rows_before(pass), key_of(0), 2 * quarter()));
  }
  // The passes' rows have the same swizzle.
  __device__ static constexpr int rows_before(int pass) {
    static_assert(kPassKeys % 8 == 0);
    return pass * kPassKeys * kBlockDims;
  }
  __device__ static int to_others() { return key_of(0) % 2 == 0 ? 1 : -1; }
  __device__ static int quarter() { return this_thread() % 4; }
  // The key of a pass, in its tile.
  __device__ static int key_of(int pass, int thread = this_thread()) {
    return thread / 32 % kTileWarps * (kPasses * kPassKeys) + pass * kPassKeys + thread % 32 / 4;
  }

  const Params& p_;
  const Launch& launch_;
  const Job& job_;
};

// Calls f with the format as a constant, if it is kFormat, of those in kDsv4Formats[kFormats].
// Returns whether it is.
template <int kFormats, KvRowFormat kFormat, typename F>
__device__ __forceinline__ bool if_format_is(KvRowFormat format, const F& f) {
  constexpr Dsv4Formats kTaken = kDsv4Formats[kFormats];
  if constexpr (kTaken.has(kFormat)) {
    if (kTaken.has_one() || format == kFormat) {
      f(std::integral_constant<KvRowFormat, kFormat>{});
      return true;
    }
  }
  return false;
}

// Calls f with the format, one of those, as a constant.
template <int kFormats, typename F>
__device__ __forceinline__ void with_format(KvRowFormat format, const F& f) {
  if_format_is<kFormats, KvRowFormat::bf16>(format, f) ||
      if_format_is<kFormats, KvRowFormat::e4m3_bf16>(format, f) ||
      if_format_is<kFormats, KvRowFormat::e4m3>(format, f) ||
      if_format_is<kFormats, KvRowFormat::e2m1>(format, f);
}

// The end of the run of every second tile from `tile` on whose rows have one format.
template <int kFormats>
__device__ int run_end(const Params& p, const Job& job, int tile) {
  const auto format_at = [&](int its_tile) {
    return format_of<kFormats>(p, tile_at(job.unit, its_tile).source);
  };
  if (kDsv4Formats[kFormats].has_one()) {
    return uniform(job.end_tile);
  }
  int next = tile + kPairTiles;
  while (next < job.end_tile && format_at(next) == format_at(tile)) {
    next += kPairTiles;
  }
  return uniform(min(next, job.end_tile));
}

}  // namespace tilewright::cuda::dsv4
