// Rows on their way to SMEM in dsv4_spread (spread.cuh). A warp has eight rows at a time, four
// lanes a row.
#pragma once

#include "cuda/attention/dsv4_decode/lane_row.cuh"
#include "cuda/attention/dsv4_decode/spread_storage.cuh"

namespace tilewright::cuda::dsv4 {

// What is copied of a coded row to its tile's place in SMEM: all but scales that lie apart.
__device__ constexpr int copied_bytes(const KvRowParts& parts) {
  return parts.has_planes ? parts.data_bytes() : parts.row_bytes();
}

// From a copied row to the next. The four lanes of a row read a group's codes at once, and a pass
// of SMEM serves as many rows as have different banks: so rows are a group's bytes apart, modulo
// 128.
__device__ constexpr int copied_stride(const KvRowParts& parts) {
  constexpr int kBanks_bytes = 128;
  const int group_bytes = kBlockDims * parts.code_bits / 8;
  const int behind = copied_bytes(parts) - group_bytes;
  return (behind + kBanks_bytes - 1) / kBanks_bytes * kBanks_bytes + group_bytes;
}

// Sets of column blocks, a bit each. A consumer's warp widens these of its eight rows of the own
// pair's tile, and a producer's the rest.
inline constexpr std::uint32_t kAllColumnBlocks = (1u << kBlocks) - 1;
inline constexpr std::uint32_t kConsumerBlocks = 0x7f;
inline constexpr std::uint32_t kRestOfBlocks = kAllColumnBlocks ^ kConsumerBlocks;

// Eight rows of a tile of the own pair, of which a warp stores column blocks kColumnBlocks. Coded
// rows have been copied to the tile's place as they are, and are widened from there to there: all
// warps of the tile, four producers and four consumers, read theirs before the first is stored.
// BF16 rows are copied to their places.
template <KvRowFormat kFormat, std::uint32_t kColumnBlocks = kAllColumnBlocks>
class KeyRows {
 public:
  using Its = LaneRow<kFormat>;
  static constexpr bool kIsCoded = Its::kCodedGroups > 0;
  static_assert(kTileKeys * copied_stride(Its::kParts) <= sizeof(SpreadStorage::keys[0]));

  // From key `first` of the tile on.
  __device__ KeyRows(SpreadStorage& shared, int own, int first)
      : shared_(shared), own_(own), first_(first), to_(shared.keys[own][0], first) {}

  // Asks for BF16 rows.
  __device__ __forceinline__ void ask(int round) {
    if constexpr (!kIsCoded) {
      const Its row = in_memory(round);
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
#pragma unroll
        for (int i = 0; i < kConsumers; ++i) {
          row.copy(block_of_quarter(quarter, i), to_, block_of_quarter(quarter, i));
        }
        cute::cp_async_fence();
      }
    }
  }

  // Reads what has been copied, if it is not BF16.
  __device__ __forceinline__ void read(int round) {
    if constexpr (kIsCoded) {
      shared_.wait_for_copies(own_, round);
      const Its row({reinterpret_cast<const std::uint8_t*>(shared_.keys[own_][0]) +
                         key() * copied_stride(Its::kParts),
                     shared_.scales[own_][key()]});
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (has(group)) {
          raw_[group] = row.template load<FromShared>(group);
        }
      }
      if constexpr (Its::kCodedGroups < kGroups && has(kGroups - 1)) {
        last_ = row.template load<FromShared>(kGroups).low;
      }
      scales_ = row.template scales<FromShared>();
      exceeds_ = __any_sync(0xffffffffu, scales_.some_exceed());
    }
  }

  // Stores rows of which some have a scale that exceeds, all quarters.
  __device__ __forceinline__ void store_exceeding(int round) const {
    if constexpr (kIsCoded) {
      if (exceeds_) {
        const Its row = in_memory(round);
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
          to_.store(group, 0, row.values(group));
        }
      }
    }
  }

  // Stores a quarter of rows that are not.
  template <int kQuarter>
  __device__ __forceinline__ void store() const {
    if constexpr (!kIsCoded) {
      cute::cp_async_wait<kQuarters - 1 - kQuarter>();
    } else if (!exceeds_) {
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int group = block_of_quarter(kQuarter, i);
        if (has(group) && group < Its::kCodedGroups) {
          to_.store(group, 0, Its::F::widen(raw_[group], group, scales_));
        } else if (has(group)) {
          to_.store(group, 0, uncoded());
        }
      }
    }
  }

 private:
  static constexpr bool has(int group) { return (kColumnBlocks >> group & 1) != 0; }

  __device__ SixteenValues uncoded() const {
    if constexpr (Its::kCodedGroups < kGroups) {
      return {raw_[kGroups - 1].low, last_};
    }
    return {};
  }

  __device__ Its in_memory(int round) const {
    shared_.rows_full.wait(round & 1);
    return Its(shared_.rows()[Round::number(own_)][key()]);
  }
  __device__ int key() const { return first_ + this_thread() % 32 / 4; }

  SpreadStorage& shared_;
  int own_;
  int first_;
  LanePlace to_;
  typename Its::Raw raw_[kGroups];
  typename Its::Scales scales_;
  uint4 last_;
  bool exceeds_ = false;
};

// Waits until all warps of the own pair's tile have read what was copied.
__device__ inline void sync_tile(int own) {
  cutlass::arch::NamedBarrier::sync(2 * kWarpgroupThreads, kTileSync + own);
}

// A block's columns of V of kTiles tiles of one format, of which a warp has eight rows each.
template <KvRowFormat kFormat, int kTiles>
class ValueRows {
 public:
  using Its = LaneRow<kFormat>;

  // From the round's tile `first` on.
  __device__ ValueRows(SpreadStorage& shared, int first)
      : shared_(shared), first_(first), to_(shared.keys[0][first], first_of_warp()) {}

  // Loads what is widened, and its scales. Tiles from `tiles` on do not exist.
  __device__ __forceinline__ void load(int tiles) {
    if (block_rank() < Its::kCodedGroups) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        raw_[i] = row_of(i, tiles).load(block_rank());
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        scales_[i] = row_of(i, tiles).scale(block_rank());
      }
      bool exceeds = false;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        exceeds |= Its::Scales::exceeds(scales_[i]);
      }
      exceeds_ = __any_sync(0xffffffffu, exceeds);
    }
  }
  // Does store() read them again?
  __device__ bool reads_rows_again() const { return exceeds_ || block_rank() >= Its::kCodedGroups; }

  // Stores them, or copies what needs no widening.
  __device__ __forceinline__ void store(int tiles) const {
    const int group = block_rank();
    if (group >= Its::kCodedGroups) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        row_of(i, tiles).copy(group, to_, i);
      }
      cute::cp_async_wait<0>();
    } else if constexpr (Its::kCodedGroups > 0) {
      if (exceeds_) {
#pragma unroll 1
        for (int i = 0; i < kTiles; ++i) {
          to_.store(i, 0, row_of(i, tiles).values(group));
        }
        return;
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        to_.store(i, 0, Its::F::widen(raw_[i], twice(scales_[i])));
      }
    }
  }

 private:
  __device__ static int first_of_warp() { return this_thread() / 32 * kPassKeys; }

  __device__ Its row_of(int i, int tiles) const {
    const int number = first_ + i;
    const int key = first_of_warp() + this_thread() % 32 / 4;
    return Its(number < tiles ? shared_.rows()[number][key] : RowAt{});
  }

  SpreadStorage& shared_;
  int first_;
  LanePlace to_;
  typename Its::Raw raw_[kTiles];
  std::uint32_t scales_[kTiles];
  bool exceeds_ = false;
};

}  // namespace tilewright::cuda::dsv4
