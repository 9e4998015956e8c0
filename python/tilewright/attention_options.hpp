// Options of attention operations, as Python has them.
#pragma once

#include <cstdint>
#include <optional>

#include "tilewright/attention.hpp"

namespace tilewright {

// Python has -1 for a side without a limit.
inline Window to_window(std::int64_t left, std::int64_t right) {
  const auto side = [](std::int64_t keys) {
    return keys == -1 ? std::nullopt : std::optional(keys);
  };
  return {.left = side(left), .right = side(right)};
}

inline std::optional<float> to_scale(std::optional<double> softmax_scale) {
  return softmax_scale ? std::optional(static_cast<float>(*softmax_scale)) : std::nullopt;
}

}  // namespace tilewright
