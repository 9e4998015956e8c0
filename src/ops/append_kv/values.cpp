// Checks of a call of append_kv() by the values of its slots, lengths, pages and positions. They
// look at copies on the host.
#include <string>
#include <utility>
#include <vector>

#include "ops/append_kv/checks.hpp"
#include "ops/length_checks.hpp"
#include "ops/slot_checks.hpp"

namespace tilewright {
namespace {

// Copies of what says where rows go, and the call's rows that point to them.
struct HostRows {
  HostRows(const AppendKvTensors& t, const AppendRows& of_call, Stream stream) : rows(of_call) {
    const auto copy = [&]<typename T>(const std::optional<ConstTensorView>& tensor,
                                      std::vector<T>& to, const T*& pointer) {
      if (tensor) {
        to = values_of<T>(*tensor, stream);
        pointer = to.data();
      }
    };
    copy(t.slot_mapping, slots, rows.slots);
    copy(t.cache_seqlens, seqlens, rows.seqlens);
    copy(t.cu_seqlens_new, cu_seqlens_new, rows.cu_seqlens_new);
    copy(t.block_table, block_table, rows.block_table);
    copy(t.cache_batch_idx, cache_batch_idx, rows.cache_batch_idx);
    copy(t.positions, positions, rows.positions);
    rows.block_table_stride = rows.max_pages;
    rows.positions_batch_stride = rows.per_batch;
  }

  std::vector<std::int64_t> slots;
  std::vector<int> seqlens;
  std::vector<int> cu_seqlens_new;
  std::vector<int> block_table;
  std::vector<int> cache_batch_idx;
  std::vector<std::int64_t> positions;
  AppendRows rows;
};

std::string sequence_text(int sequence) { return "sequence " + std::to_string(sequence); }

// The number of a sequence's new rows.
std::int64_t new_rows(const AppendRows& rows, int sequence) {
  return rows.cu_seqlens_new != nullptr
             ? rows.cu_seqlens_new[sequence + 1] - rows.cu_seqlens_new[sequence]
             : rows.per_batch;
}

// Checks the pages that a sequence's new rows go to.
void check_pages(const AppendRows& rows, int sequence) {
  const std::int64_t first = rows.seqlens[sequence];
  const std::int64_t end = first + new_rows(rows, sequence);
  for (std::int64_t entry = first / rows.page_size; entry * rows.page_size < end; ++entry) {
    check_range("block_table", rows.block_table[sequence * rows.block_table_stride + entry],
                sequence_text(sequence) + ", entry " + std::to_string(entry), 0, rows.pages - 1,
                "pages of k_cache");
  }
}

void check_lengths(const AppendRows& rows) {
  const std::int64_t capacity = rows.block_table != nullptr
                                    ? std::int64_t{rows.max_pages} * rows.page_size
                                    : std::int64_t{rows.page_size};
  for (int b = 0; b < rows.sequences; ++b) {
    const std::int64_t count = new_rows(rows, b);
    if (rows.seqlens[b] < 0 || rows.seqlens[b] + count > capacity) {
      fail("cache_seqlens",
           "is " + std::to_string(rows.seqlens[b]) + " for " + sequence_text(b) + " with " +
               std::to_string(count) + " new tokens, must be at least 0 and with them at most " +
               std::to_string(capacity) + ", the capacity of " +
               (rows.block_table != nullptr ? "a row of block_table" : "an entry of k_cache"));
    }
    if (rows.cache_batch_idx != nullptr) {
      check_range("cache_batch_idx", rows.cache_batch_idx[b], sequence_text(b), 0, rows.pages - 1,
                  "entries of k_cache");
    }
    if (rows.block_table != nullptr && count > 0) {
      check_pages(rows, b);
    }
    if (rows.positions == nullptr && rows.max_positions > 0 && count > 0 &&
        rows.seqlens[b] + count > rows.max_positions) {
      fail("rotary_cos",
           "has " + std::to_string(rows.max_positions) + " positions, must have at least " +
               std::to_string(rows.seqlens[b] + count) + ", those of " + sequence_text(b));
    }
  }
}

// Is a row stored, if its position is right?
bool is_stored(AppendRows rows, int row) {
  rows.max_positions = 0;
  return rows.place_of(row).page >= 0;
}

void check_positions(const AppendRows& rows, bool has_queries) {
  for (int row = 0; row < rows.count; ++row) {
    const bool has_query = has_queries && (rows.slots != nullptr || rows.sequence_of(row) >= 0);
    if (has_query || is_stored(rows, row)) {
      check_range("positions", rows.positions[row], "row " + std::to_string(row), 0,
                  rows.max_positions - 1, "positions of rotary_cos");
    }
  }
}

const char* name_of_places(const AppendRows& rows) {
  if (rows.slots != nullptr) {
    return "slot_mapping";
  }
  return rows.block_table != nullptr ? "block_table" : "cache_batch_idx";
}

void check_places_are_different(const AppendRows& rows) {
  std::vector<SlotOfRow> slots;
  slots.reserve(static_cast<std::size_t>(rows.count));
  for (int row = 0; row < rows.count; ++row) {
    const RowPlace place = rows.place_of(row);
    if (place.page >= 0) {
      slots.emplace_back(place.page * rows.page_size + place.in_page, row);
    }
  }
  check_slots_are_different(name_of_places(rows), std::move(slots));
}

}  // namespace

void check_values(const AppendKvTensors& t, const AppendRows& of_call, Stream stream) {
  const HostRows host(t, of_call, stream);
  const AppendRows& rows = host.rows;
  if (rows.slots != nullptr) {
    check_slots(host.slots, std::int64_t{rows.pages} * rows.page_size, "k_cache");
  } else {
    if (rows.cu_seqlens_new != nullptr) {
      check_cu_seqlens("cu_seqlens_new", host.cu_seqlens_new, rows.count, "k");
    }
    check_lengths(rows);
  }
  if (rows.positions != nullptr) {
    check_positions(rows, t.q.has_value());
  }
  check_places_are_different(rows);
}

}  // namespace tilewright
