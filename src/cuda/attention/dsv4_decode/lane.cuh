// A lane's part of the loading of key tiles: a warp takes eight keys in a pass, four lanes a key.
#pragma once

#include "cuda/attention/dsv4_decode/places.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kPassKeys = 8;

// A lane's part of tiles that kWarps warps load together.
template <KvRowFormat kTheFormat, int kWarps>
class Lane {
 public:
  static constexpr KvRowFormat kFormat = kTheFormat;
  using F = Format<kFormat>;
  using Raw = typename F::Raw;
  static constexpr int kPasses = kTileKeys / (kWarps * kPassKeys);

  // The rows of this lane's keys in a tile, pass by pass.
  struct Rows {
    const std::uint8_t* data[kPasses];
    typename F::Scales scales[kPasses];
  };

  __device__ Lane(const Params& p, const Launch& launch, const Unit& unit, const Places& places,
                  int first_tile)
      : p_(p), launch_(launch), unit_(unit), places_(places), first_tile_(first_tile) {}

  // Those of a tile of the stretch; from tile `end` on there are none.
  __device__ Rows find(int tile, int end) const {
    Rows rows;
    const TileAt at = tile_at(unit_, tile);
    const int thread = this_thread();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = key_of(pass, thread);
      const int place = tile < end ? places_.of[tile - first_tile_][key] : kNoRow;
      const RowAt row =
          row_at(p_, launch_, unit_, at.source, at.key0 + key, place, parts_of(kFormat));
      rows.data[pass] = row.data;
      rows.scales[pass] = F::scales(row.scales, quarter());
    }
    return rows;
  }

  // A group of 64 dims of a pass's row on its way: loaded, and stored to the tile's column block.
  __device__ static Raw load(const Rows& rows, int pass, int group) {
    return F::load(rows.data[pass], group, quarter());
  }
  template <int kWidth = kBlockDims>  // of a column block; the group may fill two
  __device__ static void store(Element* block, int pass, int group, const Raw& raw,
                               const Rows& rows) {
    const SixteenValues values = F::widen(raw, group, rows.scales[pass]);
    uint4* const low = stored<kWidth>(block, pass);
    *low = values.low;
    low[to_others<kWidth>()] = values.high;
  }
  // What a pass has stored of a row with scales that exceed is to be multiplied again.
  template <int kWidth = kBlockDims>
  __device__ static void store_rest(Element* block, int pass, int group, const Rows& rows) {
    if constexpr (requires { rows.scales[pass].rest(group); }) {
      uint4* const low = stored<kWidth>(block, pass);
      uint4* const high = low + to_others<kWidth>();
      SixteenValues values{*low, *high};
      values.multiply(rows.scales[pass].rest(group));
      *low = values.low;
      *high = values.high;
    }
  }

  // Both.
  template <int kWidth = kBlockDims>
  __device__ static void put(Element* block, int pass, int group, const Raw& raw,
                             const Rows& rows) {
    store<kWidth>(block, pass, group, raw, rows);
    if (rows.scales[pass].some_exceed()) {
      store_rest<kWidth>(block, pass, group, rows);
    }
  }

  // Copies a group of a pass's row as it is.
  __device__ static void copy(Element* block, int pass, int group, const Rows& rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int vector = 2 * quarter() + i;
      cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(
          *reinterpret_cast<const cute::uint128_t*>(rows.data[pass] + group * 128 + vector * 16),
          *reinterpret_cast<cute::uint128_t*>(vector_of(block, key_of(pass), vector)));
    }
  }

 private:
  // The place of this lane's first eight values of a group, and how far behind or before them the
  // others lie.
  template <int kWidth>
  __device__ static uint4* stored(Element* block, int pass) {
    constexpr int kVectors = kWidth / 8;
    block += 2 * quarter() / kVectors * (kTileKeys * kWidth);
    return reinterpret_cast<uint4*>(
        vector_of<kWidth>(block, key_of(pass), 2 * quarter() % kVectors));
  }
  template <int kWidth>
  __device__ static int to_others() {
    return exchange_of<kWidth>(key_of(0)) % 2 == 0 ? 1 : -1;
  }
  __device__ static int quarter() { return threadIdx.x % 4; }
  // The key of a pass, in its tile.
  __device__ static int key_of(int pass, int thread = threadIdx.x) {
    return thread / 32 % kWarps * (kPasses * kPassKeys) + pass * kPassKeys + thread % 32 / 4;
  }

  const Params& p_;
  const Launch& launch_;
  const Unit& unit_;
  const Places& places_;
  const int first_tile_;  // of the stretch
};

// Calls f with the format as a constant, if it is kFormat, of those in kDsv4Formats[kFormats].
template <int kFormats, KvRowFormat kFormat, typename F>
__device__ __forceinline__ void if_format_is(KvRowFormat format, const F& f) {
  constexpr Dsv4Formats kTaken = kDsv4Formats[kFormats];
  if constexpr (kTaken.has(kFormat)) {
    if (kTaken.has_one() || format == kFormat) {
      f(std::integral_constant<KvRowFormat, kFormat>{});
    }
  }
}

// Calls f with the format, one of those, as a constant.
template <int kFormats, typename F>
__device__ __forceinline__ void with_format(KvRowFormat format, const F& f) {
  if_format_is<kFormats, KvRowFormat::bf16>(format, f);
  if_format_is<kFormats, KvRowFormat::e4m3_bf16>(format, f);
  if_format_is<kFormats, KvRowFormat::e4m3>(format, f);
  if_format_is<kFormats, KvRowFormat::e2m1>(format, f);
}

// The end of the run of tiles from `tile` on whose rows have one format, and which is no longer
// than to `end`.
template <int kFormats>
__device__ int run_end(const Params& p, const Unit& unit, int tile, int end) {
  const auto format_at = [&](int its_tile) {
    return format_of<kFormats>(p, tile_at(unit, its_tile).source);
  };
  if (kDsv4Formats[kFormats].has_one()) {
    return end;
  }
  int next = tile + 1;
  while (next < end && format_at(next) == format_at(tile)) {
    ++next;
  }
  return uniform(next);
}

}  // namespace tilewright::cuda::dsv4
