// Where a sequence's boxes lie, for a warp that loads them by TMA.
#pragma once

#include "cuda/attention/blocks/cache_boxes.hpp"
#include "cuda/common/tma.cuh"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

struct alignas(8) BoxPlace {
  int page;  // of the caches
  int row;   // the box's first, within the page
};

// A chunk is 32 neighbouring boxes, or two groups of 32. Each lane has one of a group, and the
// table's entry for the one in the chunk that comes next: kStep chunks later, or earlier if kStep
// is negative.
template <int kStep, int kGroups = 1>
class BoxPlaces {
 public:
  static_assert(kGroups == 1 || kGroups == 2);

  __device__ BoxPlaces(const KvRows& rows, const CacheBoxes& boxes, int sequence, int cache_row)
      : rows_(rows), boxes_(boxes), row_(rows.block_table != nullptr ? sequence : cache_row) {}

  // Makes the boxes of `chunk` those of the lanes. Returns whether others were.
  __device__ bool take(int chunk) {
    const bool is_new = chunk != chunk_;
    if (is_new) {
      pages_ = chunk == chunk_ + kStep ? next_pages_ : pages_of(chunk);
      chunk_ = chunk;
      next_pages_ = pages_of(chunk + kStep);
    }
    return is_new;
  }

  __device__ int box(int group = 0) const { return box_of(chunk_, group); }
  __device__ int page(int group = 0) const { return group == 0 ? pages_.first : pages_.second; }
  __device__ int row(int group = 0) const { return boxes_.row_in_page(box(group)); }

 private:
  static constexpr int kNone = -2;  // no chunk, and none that follows or precedes one

  // Of this lane's boxes. An array would lie in local memory.
  struct Pages {
    int first;
    int second;  // of the second group
  };

  __device__ static int box_of(int chunk, int group) {
    return 32 * (kGroups * chunk + group) + static_cast<int>(threadIdx.x % 32);
  }

  __device__ Pages pages_of(int chunk) const {
    return {page_of(chunk, 0), kGroups == 2 ? page_of(chunk, 1) : 0};
  }

  // A page beyond the table is not read: no key of it is seen.
  __device__ int page_of(int chunk, int group) const {
    if (rows_.block_table == nullptr) {
      return row_;
    }
    const int box = box_of(chunk, group);
    const int index = boxes_.page_of(box);
    return box >= 0 && index < rows_.max_pages
               ? rows_.block_table[row_ * rows_.table_stride + index]
               : 0;
  }

  const KvRows& rows_;
  const CacheBoxes& boxes_;
  int row_;  // of the table or, without pages, of the caches
  int chunk_ = kNone;
  Pages pages_{};
  Pages next_pages_{};
};

// The same for a thread that loads boxes of several lanes: their places are in SMEM.
template <int kStep>
class SharedBoxPlaces {
 public:
  // `places` has room for 32, and belongs to this warp.
  __device__ SharedBoxPlaces(const BoxPlaces<kStep>& of_lanes, BoxPlace* places)
      : of_lanes_(of_lanes), places_(places) {}

  // Makes the boxes [32 chunk, 32 chunk + 32) those that can be asked for. The whole warp calls it
  // when no lane reads the former ones any more.
  __device__ void take(int chunk) {
    if (of_lanes_.take(chunk)) {
      places_[threadIdx.x % 32] = {of_lanes_.page(), of_lanes_.row()};
      __syncwarp();
    }
  }

  __device__ BoxPlace operator[](int box) const { return places_[box % 32]; }

 private:
  BoxPlaces<kStep> of_lanes_;
  BoxPlace* places_;
};

}  // namespace tilewright::cuda
