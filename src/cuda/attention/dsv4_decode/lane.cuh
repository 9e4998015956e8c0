// A lane's part of the loading of key tiles: a warp takes eight keys in a pass, four lanes a key.
#pragma once

#include "cuda/attention/dsv4_decode/job.cuh"
#include "cuda/attention/dsv4_decode/rows.cuh"
#include "cuda/common/copy_async.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kPassKeys = 8;
inline constexpr int kPasses = 2;  // of a warp over its keys of a tile
inline constexpr int kWarpKeys = kPasses * kPassKeys;
inline constexpr int kTileWarps = kTileKeys / kWarpKeys;

// The first key of a thread's warp in its tile.
__device__ constexpr int first_key(int thread) { return thread / 32 % kTileWarps * kWarpKeys; }

// Where a lane's values go in a tile in SMEM. Its 16 values of a group are two vectors, which the
// swizzle makes neighbours: their addresses differ in one bit.
class LanePlace {
 public:
  __device__ explicit LanePlace(Element* tile) : LanePlace(tile, first_key(this_thread())) {}
  // Where the warp's keys begin with `first`.
  __device__ LanePlace(Element* tile, int first) {
    const int thread = this_thread();
    first_ =
        cute::cast_smem_ptr_to_uint(vector_of(tile, first + thread % 32 / 4, 2 * (thread % 4)));
  }

  // The address of vector `i` of a pass's row in a column block. The passes' rows have the same
  // swizzle.
  __device__ std::uint32_t vector(int block, int pass, int i) const {
    constexpr int kRow_bytes = kBlockDims * sizeof(Element);
    static_assert(kPassKeys % 8 == 0);
    return (first_ ^ i * 16) + block * (kTileKeys * kRow_bytes) + pass * (kPassKeys * kRow_bytes);
  }

  __device__ void store(int block, int pass, const SixteenValues& values) const {
    store16(vector(block, pass, 0), values.low);
    store16(vector(block, pass, 1), values.high);
  }

 private:
  __device__ static void store16(std::uint32_t address, const uint4& x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
  }

  std::uint32_t first_;
};

// A lane's part of tiles that a warpgroup loads.
template <KvRowFormat kTheFormat>
class Lane {
 public:
  static constexpr KvRowFormat kFormat = kTheFormat;
  static constexpr bool kLastIsBf16 = parts_of(kFormat).coded_dims < kKvRowDims;
  using F = Format<kFormat>;
  using Raw = typename F::Raw;

  // Of this lane's keys in a tile, pass by pass: where its part of the row begins, and its scales.
  struct Rows {
    const std::uint8_t* data[kPasses];
    typename F::Scales scales[kPasses];
  };

  __device__ Lane(const Params& p, const Launch& launch, const Job& job)
      : p_(p), launch_(launch), job_(job) {}

  // The number of a tile's pair.
  __device__ int pair_of(int tile) const { return dsv4::pair_of(job_, tile); }

  // Finds where the warp's rows of a tile lie, for take(), and may bring them to L2, line by line.
  // From tile `end` on there are none. Two neighbouring lanes have a row.
  __device__ void locate(int tile, int end, RowAt* located, bool brings) const {
    constexpr KvRowParts kParts = parts_of(kFormat);
    const int thread = this_thread();
    const int key = first_key(thread) + thread % 32 / 2;
    const int place = tile < end ? job_.places.of[tile - job_.first_tile][key] : kNoRow;
    RowAt row;
    if (place != kNoRow) {
      const TileAt at = tile_at(job_.unit, tile);
      row = row_at(p_, launch_, job_.unit, at.source, at.key0 + key, place, kParts,
                   job_.unit.begin[at.source]);
      if (brings) {
        const int own = thread % 2;
#pragma unroll
        for (int line = 0; line < kRow_bytes; line += 2 * kLine_bytes) {
          prefetch_line(row.data + min(line + own * kLine_bytes, kRow_bytes - 1));
        }
        constexpr bool kHasScales = kParts.scales_bytes > 0;
        prefetch_line(own == 0 || !kHasScales ? row.data + kRow_bytes - 1 : row.scales);
      }
    }
    __syncwarp();  // all lanes have taken what was there
    if (thread % 2 == 0) {
      located[key] = row;
    }
    __syncwarp();
  }

  // This lane's rows of the tile that has been located.
  __device__ Rows take(const RowAt* located) const {
    constexpr KvRowParts kParts = parts_of(kFormat);
    Rows rows;
    const int thread = this_thread();
    const int key = first_key(thread) + thread % 32 / 4;
    const int quarter = thread % 4;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const RowAt row = located[key + pass * kPassKeys];
      rows.data[pass] = row.data + quarter * F::kLane_bytes;
      rows.scales[pass] =
          F::scales(kParts.has_planes ? row.scales : row.data + kParts.data_bytes(), quarter);
    }
    return rows;
  }

  // Brings these rows from group `first` on to L2, a line a lane.
  __device__ static void bring_rest(const Rows& rows, int first) {
    constexpr int kGroup_bytes = 4 * F::kLane_bytes;
    const int lane = this_thread() % 4;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      prefetch_line(rows.data[pass] - lane * F::kLane_bytes +
                    min(first * kGroup_bytes + lane * kLine_bytes, kRow_bytes - 1));
    }
  }

  // Loads a group of 64 dims of a pass's row.
  __device__ static Raw load(const Rows& rows, int pass, int group) {
    return F::load(here(rows.data[pass]), group);
  }

  // Copies a group of a pass's row as it is.
  __device__ static void copy(const LanePlace& to, int pass, int group, const Rows& rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy_async<16>(to.vector(group, pass, i), rows.data[pass] + group * 128 + i * 16, true);
    }
  }

 private:
  static constexpr int kRow_bytes =
      parts_of(kFormat).has_planes ? parts_of(kFormat).data_bytes() : parts_of(kFormat).row_bytes();

  // Keeps the compiler from computing further addresses ahead of a loop: no registers are left for
  // them.
  __device__ static const std::uint8_t* here(const std::uint8_t* address) {
    asm volatile("" : "+l"(address));
    return address;
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
