// The warpgroup that copies K and V tiles row by row (cp.async), for pages that are too small for
// TMA: it would take a load or two for each row.
#pragma once

#include "cuda/attention/blocks/box_places.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/load.cuh"
#include "cuda/attention/prefill/sequences.cuh"
#include "cuda/common/copy_async.cuh"

namespace tilewright::cuda {
namespace prefill {

inline constexpr int kCopyingWarps = kWarpgroupThreads / 32;

// How rows of a stage lie in SMEM: in boxes of kBoxColumns columns, swizzled.
template <int kBc, int kHeadDim, int kBoxColumns>
struct StageRows {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kBoxChunks = kBoxColumns / 8;
  static constexpr int kBox_bytes = 2 * kBoxColumns;

  __device__ static int offset(int row, int chunk) {
    const int plain = row * kBox_bytes + chunk % kBoxChunks * 16;
    const int swizzled = plain ^ (plain >> 3 & (kBox_bytes - 16));
    return chunk / kBoxChunks * kBc * kBox_bytes + swizzled;
  }
};

// K or V as a warp copies it. A lane finds the place of one of the rows that its warp copies of
// each tile, or of none. Table entries are asked for a tile ahead, and tiles come from the last to
// the first.
template <typename Config, int kHeadDim>
class RowCopies {
  using Element = typename Config::Element;
  static constexpr int kBc = Config::C.bc;

 public:
  __device__ RowCopies(const Params& p, const Launch& launch, const CacheTile& tile,
                       const void* cache, const OuterStrides& stride)
      : p_(p),
        tile_(tile),
        cache_(static_cast<const Element*>(cache)),
        stride_(stride),
        places_(p.rows, launch.boxes, tile.sequence, tile.kv_batch) {}

  // Copies this warp's rows of key tile j to a stage. Of rows that no query sees, or whose page
  // does not exist, it makes zeros.
  __device__ __forceinline__ void copy(int j, Element* stage) {
    constexpr int kRows = kBc / kCopyingWarps;
    constexpr int kChunks = Stage::kChunks;
    const int lane = threadIdx.x % 32;
    const int first = kRows * (static_cast<int>(threadIdx.x) % kWarpgroupThreads / 32);
    const std::uint32_t target = cute::cast_smem_ptr_to_uint(stage);
    places_.take((kBc * j + first) / 32);
    const long long own = place();
    const auto copy_chunk = [&](int row, int chunk, std::uint32_t to) {
      const long long from = __shfl_sync(0xffffffffu, own, first % 32 + row);
      copy_async<16>(to, cache_ + (from >= 0 ? from : 0) + 8 * chunk, from >= 0);
    };
    if constexpr (32 % kChunks == 0) {  // a lane always copies the same chunk
      constexpr int kStep = 32 / kChunks;
      constexpr int kCopies = kSwizzleRows / kStep;
      const int lane_row = lane / kChunks;
      const int chunk = lane % kChunks;
      std::uint32_t targets[kCopies];
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        targets[i] = target + Stage::offset(first + kStep * i + lane_row, chunk);
      }
#pragma unroll 1
      for (int row = 0; row < kRows; row += kSwizzleRows) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          copy_chunk(row + kStep * i + lane_row, chunk, targets[i] + row * Stage::kBox_bytes);
        }
      }
    } else {
      static_assert(kRows * kChunks % 32 == 0);
#pragma unroll 2
      for (int i = lane; i < kRows * kChunks; i += 32) {
        copy_chunk(i / kChunks, i % kChunks,
                   target + Stage::offset(first + i / kChunks, i % kChunks));
      }
    }
  }

 private:
  using Stage = StageRows<kBc, kHeadDim, Config::Tiles::kBoxColumns>;
  static constexpr int kSwizzleRows = 8;  // after which the swizzle repeats

  // How far into the caches this lane's row lies, or -1 if it is nowhere.
  __device__ long long place() const {
    const int key = places_.box();
    const int page = places_.page();
    const bool exists =
        key >= tile_.seen_first && key < tile_.seen_end && page >= 0 && page < p_.rows.cache_rows;
    return exists
               ? page * stride_.batch + places_.row() * stride_.seq + tile_.kv_head * stride_.head
               : -1;
  }

  const Params& p_;
  const CacheTile& tile_;
  const Element* cache_;
  const OuterStrides& stride_;
  BoxPlaces<-kBc / 32> places_;
};

// The stages that a warp has copied its rows to, while the copies are under way. It puts them when
// those of two further stages are, or when it would wait otherwise.
class CopiedStages {
 public:
  __device__ void add(TmaBarrier& full) {
    end_copy_group();
    wait_for_copy_groups<2>();
    put(older_);
    older_ = newer_;
    newer_ = &full;
  }

  __device__ void put_all() {
    wait_for_copies();
    put(older_);
    put(newer_);
    older_ = newer_ = nullptr;
  }

 private:
  __device__ static void put(TmaBarrier* full) {
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (full != nullptr && threadIdx.x % 32 == 0) {
      full->arrive();
    }
  }

  TmaBarrier* older_ = nullptr;
  TmaBarrier* newer_ = nullptr;
};

// The warpgroup copies tiles in the order in which the consumers read them: V of a key tile behind
// K of the next one. Q comes behind the first K, by TMA.
template <typename Storage>
__device__ void copy_tiles(Storage& shared, const Params& p, const Launch& launch,
                           const FlashTensorMaps& maps) {
  using Config = typename Storage::Config;
  constexpr auto C = Config::C;
  const bool is_leader = threadIdx.x % kWarpgroupThreads == 0;
  typename Config::PositionK at_k;
  typename Config::PositionV at_v;
  RingPosition<1> at_q;
  typename Storage::TilePosition at_tile;
  CopiedStages copied;
  const auto copy = [&](auto& ring, auto& at, auto& rows, int j, auto& stages) {
    // The consumers may wait for a copied stage before they free this one.
    if (!__all_sync(0xffffffffu, ring.empty[at.stage].test_wait(at.phase ^ 1))) {
      copied.put_all();
      ring.wait_until_empty(at);
    }
    rows.copy(j, stages[at.stage]);
    copied.add(ring.full[at.stage]);
    at.advance();
  };
  while (true) {
    const CacheTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    RowCopies<Config, C.head_dim> rows_k(p, launch, tile, p.k_cache, p.k_stride);
    RowCopies<Config, C.value_dim> rows_v(p, launch, tile, p.v_cache, p.v_stride);
    const int last = tile.kv_end - 1;
    const int announced = min(last, tile.kv_first + flash::kTilesAhead);
#pragma unroll 1
    for (int j = last; j >= tile.kv_first - 1; --j) {
      if (j >= tile.kv_first) {
        if (j == announced && is_leader) {
          shared.tiles.want_next(at_tile);
        }
        copy(shared.k, at_k, rows_k, j, shared.sK);
      }
      if (j < last) {
        copy(shared.v, at_v, rows_v, j + 1, shared.sV);
      } else if (j >= tile.kv_first) {
        if (is_leader) {
          flash::load_q(shared, maps.q, tile, at_q);
        }
        at_q.advance();
      }
    }
    if (last < tile.kv_first && is_leader) {  // no key is seen: there is nothing to copy
      shared.tiles.want_next(at_tile);
    }
    copied.put_all();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

}  // namespace prefill
}  // namespace tilewright::cuda
