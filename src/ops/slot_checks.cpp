#include "ops/slot_checks.hpp"

#include <algorithm>
#include <string>

#include "ops/tensor_checks.hpp"

namespace tilewright {

void check_slots(std::span<const std::int64_t> slots, std::int64_t count, const char* of) {
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] < -1 || slots[row] >= count) {
      fail("slot_mapping", "is " + std::to_string(slots[row]) + " for row " + std::to_string(row) +
                               ", must be -1 or less than " + std::to_string(count) +
                               ", the slots of " + of);
    }
  }
}

void check_slots_are_different(const char* argument, std::vector<SlotOfRow> slots) {
  std::ranges::sort(slots);
  const auto same = std::ranges::adjacent_find(slots, {}, &SlotOfRow::first);
  if (same != slots.end()) {
    fail(argument, "gives slot " + std::to_string(same->first) + " to rows " +
                       std::to_string(same->second) + " and " +
                       std::to_string(std::next(same)->second) + ", must give each row its own");
  }
}

}  // namespace tilewright
