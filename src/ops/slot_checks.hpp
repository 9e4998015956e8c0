// Checks of slots by their values, which operations that write into caches share.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tilewright {

// Each of slot_mapping's values must be -1 or one of the first `count`, which are those of `of`.
void check_slots(std::span<const std::int64_t> slots, std::int64_t count, const char* of);

// A slot and the row that goes there.
using SlotOfRow = std::pair<std::int64_t, int>;

// Fails if two rows have one slot. `argument` says where rows go.
void check_slots_are_different(const char* argument, std::vector<SlotOfRow> slots);

}  // namespace tilewright
