// Sections of heads, in which kernels of flash's kind take tiles: FlashSchedule has the order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"

namespace tilewright::cuda {

// What decides how many heads a section has.
struct SectionSizes {
  std::int64_t sequences;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t kv_len;
  std::int64_t dims;  // of a key and its value together, in 16 bits
};

// The heads of a section share the L2 cache: their K and V take about budget_bytes of it. Sections
// are of equal size: after a small last one the GPU would wait for its longest tiles.
inline int heads_of_section(const SectionSizes& of) {
  constexpr double kShortKv_bytes = 8e6;
  constexpr double kLongKv_bytes = 32e6;
  constexpr int kLongFrom = 2048;
  const double budget_bytes = of.kv_len < kLongFrom ? kShortKv_bytes : kLongKv_bytes;
  const double kv_head_bytes = 2.0 * static_cast<double>(of.kv_len) * static_cast<double>(of.dims);
  const std::int64_t kv_heads = of.sequences * of.kv_heads;
  const double sections =
      std::max(1.0, static_cast<double>(kv_heads) * kv_head_bytes / budget_bytes);
  return static_cast<int>(of.heads / of.kv_heads *
                          ceil_div(kv_heads, static_cast<std::int64_t>(sections)));
}

}  // namespace tilewright::cuda
