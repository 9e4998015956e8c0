// Strides of checked calls.
#pragma once

#include <cstdint>

namespace tilewright {

// Element strides of the outer dimensions; the head dimension has stride 1.
struct OuterStrides {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t head = 0;

  constexpr std::int64_t offset(std::int64_t its_batch, std::int64_t its_seq,
                                std::int64_t its_head) const {
    return its_batch * batch + its_seq * seq + its_head * head;
  }
};

}  // namespace tilewright
