// A lane's part of the loading of key tiles: a warp takes eight keys in a pass, four lanes a key.
#pragma once

#include "cuda/attention/dsv4_decode/rows.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kPassKeys = 8;

// ---- Where rows lie

__device__ inline KvRowFormat format_of(const Params& p, int source) {
  return source == kWindow       ? p.window.format
         : source == kCompressed ? p.compressed.format
                                 : KvRowFormat::bf16;
}

// The row of key `key` of a scope of the item; none if there is no such row.
__device__ inline RowAt find_row(const Params& p, const Launch& launch, const Unit& unit,
                                 int source, int key) {
  if (key >= unit.keys[source]) {
    return {};
  }
  if (source == kFresh) {
    const int token = unit.token0 - unit.fresh0 + key;
    const auto* const rows = static_cast<const Element*>(p.fresh.rows);
    return {reinterpret_cast<const std::uint8_t*>(rows + at(p.fresh.stride, unit.request, token)),
            nullptr};
  }
  const Scope& scope = source == kWindow ? p.window : p.compressed;
  const Divisor& page_size = launch.page_size[source];
  int page = 0;
  int row = 0;
  if (scope.keys == Scope::Keys::list) {
    const int slot =
        __ldg(scope.indices + at(scope.indices_stride, unit.request, unit.token0) + key);
    if (slot < 0) {
      return {};
    }
    page = slot / page_size;
    row = slot - page * page_size;
  } else {
    int position = unit.begin[source] + key;
    if (unit.may_have_gaps[source] && !is_seen(unit, source, position)) {
      return {};
    }
    if (scope.ring > 0) {
      position -= position / launch.ring[source] * scope.ring;
    }
    const int index = position / page_size;
    row = position - index * page_size;
    if (index >= scope.max_pages) {
      return {};
    }
    page = scope.block_table != nullptr
               ? __ldg(scope.block_table + unit.request * scope.table_stride + index)
               : unit.request;
  }
  if (page < 0 || page >= scope.pages) {
    return {};
  }
  const auto* const first = static_cast<const std::uint8_t*>(scope.rows) + page * scope.page_bytes;
  const std::uint8_t* const data = first + row * scope.row_bytes;
  const KvRowParts parts = parts_of(scope.format);
  return {data, parts.has_planes
                    ? first + page_size * scope.row_bytes + std::int64_t{row} * parts.scales_bytes
                    : data + parts.data_bytes()};
}

// ---- Rows on their way

// A lane's part of tiles that kWarps warps load together: of each pass, its key's row.
template <KvRowFormat kFormat, int kWarps>
class Lane {
 public:
  using F = Format<kFormat>;
  static constexpr int kPasses = kTileKeys / (kWarps * kPassKeys);

  __device__ Lane(const Params& p, const Launch& launch, const Unit& unit)
      : p_(p), launch_(launch), unit_(unit) {}

  // The key of a pass, in its tile.
  __device__ static int key_of(int pass) {
    return threadIdx.x / 32 % kWarps * (kPasses * kPassKeys) + pass * kPassKeys +
           threadIdx.x % 32 / 4;
  }

  // Finds the rows of a tile; they become the present ones pass by pass.
  __device__ void find(int tile) {
    const TileAt at = tile_at(unit_, tile);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      next_[pass] = find_row(p_, launch_, unit_, at.source, at.key0 + key_of(pass));
    }
  }
  __device__ void turn_to_next(int pass) {
    row_[pass] = next_[pass].data;
    scales_[pass] =
        row_[pass] != nullptr ? F::scales(next_[pass].scales, quarter()) : typename F::Scales{};
  }

  // Bit i of the warp's keys: there is a row for its key i in the present tile.
  __device__ std::uint32_t exist() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (row_[pass] != nullptr) {
        bits |= 1u << (pass * kPassKeys + threadIdx.x % 32 / 4);
      }
    }
    return __reduce_or_sync(0xffffffffu, bits);
  }

  // A group of 64 dims of a pass's row on its way: loaded, and stored to the tile's column block.
  __device__ typename F::Raw load(int pass, int group) const {
    return row_[pass] != nullptr ? F::load(row_[pass], group, quarter()) : typename F::Raw{};
  }
  template <int kWidth = kBlockDims>  // of a column block; the group may fill two
  __device__ void store(Element* block, int pass, int group, const typename F::Raw& raw) const {
    const SixteenValues values = F::widen(raw, group, scales_[pass]);
    constexpr int kVectors = kWidth / 8;
    const int key = key_of(pass);
    const int vector = 2 * quarter() % kVectors;
    block += 2 * quarter() / kVectors * (kTileKeys * kWidth);
    *reinterpret_cast<uint4*>(vector_of<kWidth>(block, key, vector)) = values.low;
    *reinterpret_cast<uint4*>(vector_of<kWidth>(block, key, vector + 1)) = values.high;
  }

  // Copies a group of a pass's row as it is, or zeros where there is no row.
  __device__ void copy(Element* block, int pass, int group) const {
    const bool exists = row_[pass] != nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int vector = 2 * quarter() + i;
      const std::uint8_t* const source =
          exists ? row_[pass] + group * 128 + vector * 16 : static_cast<const std::uint8_t*>(p_.q);
      cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
          *reinterpret_cast<const cute::uint128_t*>(source),
          *reinterpret_cast<cute::uint128_t*>(vector_of(block, key_of(pass), vector)), exists);
    }
  }

 private:
  __device__ static int quarter() { return threadIdx.x % 4; }

  const Params& p_;
  const Launch& launch_;
  const Unit& unit_;
  RowAt next_[kPasses];
  const std::uint8_t* row_[kPasses];  // data
  typename F::Scales scales_[kPasses];
};

// Calls f with the format, as a constant.
template <typename F>
__device__ __forceinline__ void with_format(KvRowFormat format, F&& f) {
  switch (format) {
    case KvRowFormat::bf16:
      return f(std::integral_constant<KvRowFormat, KvRowFormat::bf16>{});
    case KvRowFormat::e4m3_bf16:
      return f(std::integral_constant<KvRowFormat, KvRowFormat::e4m3_bf16>{});
    case KvRowFormat::e4m3:
      return f(std::integral_constant<KvRowFormat, KvRowFormat::e4m3>{});
    case KvRowFormat::e2m1:
      return f(std::integral_constant<KvRowFormat, KvRowFormat::e2m1>{});
  }
}

// The end of the run of tiles from `tile` on whose rows have one format.
__device__ inline int run_end(const Params& p, const Unit& unit, int tile) {
  const KvRowFormat format = format_of(p, tile_at(unit, tile).source);
  int end = tile + 1;
  while (end < unit.end_tile && format_of(p, tile_at(unit, end).source) == format) {
    ++end;
  }
  return end;
}

}  // namespace tilewright::cuda::dsv4
