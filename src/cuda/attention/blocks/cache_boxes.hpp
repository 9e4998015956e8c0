// The boxes of a KV cache's rows that TMA loads: each lies in one page, and in one key tile.
#pragma once

#include <bit>

#include "common/divisor.hpp"

namespace tilewright::cuda {

// The boxes [first, end) of a sequence.
struct BoxRange {
  int first;
  int end;

  TILEWRIGHT_HOST_DEVICE constexpr int count() const { return end - first; }
  TILEWRIGHT_HOST_DEVICE constexpr bool contains(int box) const {
    return box >= first && box < end;
  }
};

// A sequence's boxes, by number. Without pages, all lie in one page.
struct CacheBoxes {
  int rows_log2;  // log2 of the keys of a box
  bool is_paged;
  Divisor page_boxes;  // boxes of a page

  TILEWRIGHT_HOST_DEVICE constexpr int rows() const { return 1 << rows_log2; }
  TILEWRIGHT_HOST_DEVICE constexpr int page_of(int box) const {
    return is_paged ? box / page_boxes : 0;
  }
  TILEWRIGHT_HOST_DEVICE constexpr int row_in_page(int box) const {
    return (box - page_of(box) * page_boxes) << rows_log2;
  }

  // Those boxes of a tile of `bc` keys that have keys of [seen_first, seen_end).
  TILEWRIGHT_HOST_DEVICE constexpr BoxRange of_tile(int tile, int bc, int seen_first,
                                                    int seen_end) const {
    const int first = seen_first >> rows_log2;
    const int end = (seen_end + rows() - 1) >> rows_log2;
    const int tile_first = tile * bc >> rows_log2;
    const int tile_end = (tile + 1) * bc >> rows_log2;
    return {.first = first > tile_first ? first : tile_first,
            .end = end < tile_end ? end : tile_end};
  }
};

// Boxes of `rows` keys, a power of two that divides a page; a page_size of 0: there are no pages.
constexpr CacheBoxes cache_boxes(int page_size, int rows) {
  return {.rows_log2 = std::countr_zero(static_cast<unsigned>(rows)),
          .is_paged = page_size > 0,
          .page_boxes = Divisor(page_size > 0 ? page_size / rows : 1)};
}

}  // namespace tilewright::cuda
