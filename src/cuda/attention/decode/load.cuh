// The warps that load K and V tiles: by TMA, a page's rows at a time, where pages fit; or else row
// by row, in pieces of 16 bytes (cp.async).
#pragma once

#include "cuda/attention/decode/config.cuh"

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
  std::uint8_t* tiles;  // stage 0's
  float* descales;      // likewise
};

// The arrivals that complete a stage's loads: a TMA load's bytes have one, and each lane has one if
// it copies rows or descales.
__device__ inline int arrivals_of(const Launch& launch, const Descales& descale) {
  const bool has_rows = !launch.loads_boxes || descale.per == Descales::Per::row;
  return (launch.loads_boxes ? 1 : 0) + (has_rows ? 32 : 0);
}

// Copies 16 bytes, or 4, to SMEM; zeros if there is no source.
template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t target, const void* source, bool exists) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(source), "r"(exists ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
                 "r"(exists ? 4 : 0)
                 : "memory");
  }
}

// This lane arrives at the barrier when its copies are there.
__device__ __forceinline__ void arrive_after_copies(TmaBarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&barrier))
      : "memory");
}

// The table's row of a sequence.
class Pages {
 public:
  __device__ Pages(const Params& p, const Part& part)
      : cache_row_(part.cache_row),
        max_pages_(p.rows.max_pages),
        table_(p.rows.block_table != nullptr
                   ? p.rows.block_table + part.sequence * p.rows.table_stride
                   : nullptr) {}

  __device__ bool is_paged() const { return table_ != nullptr; }

  // The page with this index in the sequence. One beyond the table is not read: no key of it is
  // seen.
  __device__ int at(int index) const {
    if (table_ == nullptr) {
      return cache_row_;
    }
    return index >= 0 && index < max_pages_ ? table_[index] : 0;
  }

 private:
  int cache_row_;
  int max_pages_;
  const int* table_;  // null: not paged
};

// Pages of 32 neighbouring boxes, or rows, one for each lane, and those of the 32 that come next:
// when they are asked for, they are there.
class PagesAhead {
 public:
  template <typename PageOf>
  __device__ int take(int group, const PageOf& page_of) {
    if (group != group_) {
      page_ = group == group_ + 1 ? next_ : page_of(group);
      group_ = group;
      next_ = page_of(group + 1);
    }
    return page_;
  }

 private:
  int group_ = -2;
  int page_ = 0;
  int next_ = 0;
};

__device__ inline int in_group(int group) {
  return 32 * group + static_cast<int>(threadIdx.x % 32);
}

// Loads the boxes of tile j that have keys which are seen: others' pages may not exist.
template <typename Config, typename Tile>
__device__ __forceinline__ void load_boxes(const CacheSide<Config>& side, const Launch& launch,
                                           const Part& part, const Pages& pages, PagesAhead& ahead,
                                           int j, TmaBarrier& full, std::uint8_t* tile) {
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  constexpr int kBoxColumns = Tile::kBox_bytes / 2;  // TMA counts in 16 bits
  const int box_rows = launch.box_rows;
  const int boxes = kDecodeTileKeys / box_rows;  // of a tile
  const int tile_box = j * boxes;
  const int first = max(part.seen_first / box_rows, tile_box);
  const int end = min(ceil_div(part.seen_end, box_rows), tile_box + boxes);
  if (threadIdx.x % 32 == 0) {
    full.arrive_and_expect_tx((end - first) * box_rows * Tile::kRow_bytes);
  }
  __syncwarp();
  for (int group = first / 32; group <= (end - 1) / 32; ++group) {
    const int page =
        ahead.take(group, [&](int of) { return pages.at(in_group(of) / launch.page_boxes); });
    const int box = in_group(group);
    if (box >= first && box < end) {
      const int in_page =
          pages.is_paged() ? box - box / launch.page_boxes * launch.page_boxes : box;
      std::uint8_t* const target = tile + (box - tile_box) * box_rows * Tile::kBox_bytes;
#pragma unroll
      for (int i = 0; i < Tile::kBoxes; ++i) {
        cute::SM90_TMA_LOAD_4D::copy(&side.map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                                     target + i * kDecodeTileKeys * Tile::kBox_bytes,
                                     i * kBoxColumns, in_page * box_rows, part.kv_head, page);
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

__device__ inline RowPlace row_place(const Params& p, const Launch& launch, const Part& part,
                                     const Pages& pages, PagesAhead& ahead, int group) {
  const int page =
      ahead.take(group, [&](int of) { return pages.at(in_group(of) / launch.page_size); });
  const int key = in_group(group);
  return {.page = page,
          .row = key - key / launch.page_size * launch.page_size,
          .is_seen = key >= part.seen_first && key < part.seen_end,
          .exists = page >= 0 && page < p.rows.cache_rows};
}

// Copies 32 rows of a tile, from its row `row0` on. Each lane knows the place of one.
template <typename Config, typename Tile>
__device__ __forceinline__ void copy_rows(const CacheSide<Config>& side, const Part& part,
                                          const RowPlace& place, int row0, std::uint8_t* tile) {
  constexpr long long kZeros = -1;
  constexpr long long kNothing = -2;
  const std::uint32_t target = cute::cast_smem_ptr_to_uint(tile);
  const auto* const base = static_cast<const std::uint8_t*>(side.base);
  const long long own = !place.is_seen  ? kNothing
                        : !place.exists ? kZeros
                                        : place.offset(side.stride, part.kv_head);
#pragma unroll 2
  for (int i = 0; i < Tile::kChunks; ++i) {
    const int index = in_group(i);
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

// Loads a part's tiles, and their rows' descales where they have some. A whole warp calls it.
template <typename Config, typename Tile>
__device__ __forceinline__ void load_part(const Params& p, const Launch& launch,
                                          const CacheSide<Config>& side, const Part& part,
                                          typename Config::Position& at) {
  using Shared = SharedStorage<Config>;
  const bool has_descales = Config::kIsE4m3 && side.descale.per == Descales::Per::row;
  const Pages pages(p, part);
  PagesAhead of_boxes, of_rows;
  for (int j = part.tiles.first; j < part.tiles.end; ++j) {
    std::uint8_t* const tile = side.tiles + at.stage * Shared::kTile_bytes;
    TmaBarrier& full = side.ring.full[at.stage];
    side.ring.empty[at.stage].wait(at.phase ^ 1);
    if (launch.loads_boxes) {
      load_boxes<Config, Tile>(side, launch, part, pages, of_boxes, j, full, tile);
    }
    if (!launch.loads_boxes || has_descales) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const RowPlace place = row_place(p, launch, part, pages, of_rows, 2 * j + half);
        if (!launch.loads_boxes) {
          copy_rows<Config, Tile>(side, part, place, 32 * half, tile);
        }
        if (has_descales) {
          float* const target = side.descales + at.stage * 2 * kDecodeTileKeys + in_group(half);
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

}  // namespace decode
}  // namespace tilewright::cuda
