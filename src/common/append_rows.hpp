// Where the rows of a call of append_kv() go.
#pragma once

#include <cstdint>

#include "common/divisor.hpp"

namespace tilewright {

// A row's place in the cache and in its sequence.
struct RowPlace {
  int sequence = -1;           // -1: it belongs to none, or that is not known
  std::int64_t page = -1;      // of the cache, or its entry; -1: the row is not stored
  std::int64_t in_page = -1;   // the place in it
  std::int64_t position = -1;  // of the rotation; -1: there is none
};

// How a call says where its rows go. Rows are numbered through all of a batch.
struct AppendRows {
  int count = 0;
  int per_batch = 0;  // `count`, if there is no batch
  int pages = 0;      // of the cache; entries, if it is contiguous
  int page_size = 0;  // or the capacity of an entry

  const std::int64_t* slots = nullptr;  // null: by lengths
  const int* seqlens = nullptr;
  const int* cu_seqlens_new = nullptr;  // null: a sequence has a batch entry's rows
  int sequences = 0;
  const int* block_table = nullptr;
  std::int64_t block_table_stride = 0;
  int max_pages = 0;
  const int* cache_batch_idx = nullptr;

  const std::int64_t* positions = nullptr;  // null: those in the sequences
  std::int64_t positions_batch_stride = 0;
  int max_positions = 0;  // of the rotation; 0: there is none

  // The sequence of a row; -1 if it belongs to none. Searches in log2(sequences) steps, and finds
  // one of them whatever the values are.
  TILEWRIGHT_HOST_DEVICE constexpr int sequence_of(int row) const {
    if (cu_seqlens_new == nullptr) {
      return row / per_batch;
    }
    if (row < cu_seqlens_new[0] || row >= cu_seqlens_new[sequences]) {
      return -1;
    }
    int first = 0;  // starts at the row or before it
    int end = sequences;
    while (end - first > 1) {
      const int middle = first + (end - first) / 2;
      (row < cu_seqlens_new[middle] ? end : first) = middle;
    }
    return first;
  }

  // The place of a row that goes behind the keys of its sequence, not yet compared with the cache.
  TILEWRIGHT_HOST_DEVICE constexpr RowPlace place_by_length(int row) const {
    RowPlace place{.sequence = sequence_of(row)};
    if (place.sequence < 0 || seqlens[place.sequence] < 0) {
      return place;
    }
    const std::int64_t index = cu_seqlens_new != nullptr
                                   ? std::int64_t{row} - cu_seqlens_new[place.sequence]
                                   : std::int64_t{row} - std::int64_t{place.sequence} * per_batch;
    place.position = seqlens[place.sequence] + index;
    if (block_table == nullptr) {
      place.page = cache_batch_idx != nullptr ? cache_batch_idx[place.sequence] : place.sequence;
      place.in_page = place.position;
    } else if (place.position < std::int64_t{max_pages} * page_size) {
      const std::int64_t entry = place.position / page_size;
      place.page = block_table[place.sequence * block_table_stride + entry];
      place.in_page = place.position - entry * page_size;
    }
    return place;
  }

  TILEWRIGHT_HOST_DEVICE constexpr RowPlace place_by_slot(int row) const {
    RowPlace place;
    if (slots[row] >= 0) {
      place.page = slots[row] / page_size;
      place.in_page = slots[row] - place.page * page_size;
    }
    return place;
  }

  // The place of a row. One that is not in the cache, or at no position of the rotation, is not
  // stored.
  TILEWRIGHT_HOST_DEVICE constexpr RowPlace place_of(int row) const {
    RowPlace place = slots != nullptr ? place_by_slot(row) : place_by_length(row);
    const bool belongs_to_none = slots == nullptr && place.sequence < 0;
    if (positions != nullptr && !belongs_to_none) {
      const int batch = row / per_batch;
      place.position = positions[batch * positions_batch_stride + (row - batch * per_batch)];
    }
    const bool is_in_cache =
        place.page >= 0 && place.page < pages && place.in_page >= 0 && place.in_page < page_size;
    const bool has_position = place.position >= 0 && place.position < max_positions;
    if (!has_position) {
      place.position = -1;
    }
    if (!is_in_cache || (max_positions > 0 && !has_position)) {
      place.page = -1;
    }
    return place;
  }
};

}  // namespace tilewright
