// The formats of rows that dsv4_decode is compiled for.
#pragma once

#include "tilewright/kv_rows.hpp"

namespace tilewright::cuda {

// A set of formats. A kernel that takes few is small: it comes from memory before it runs.
struct Dsv4Formats {
  int takes[4];  // 1 or 0 of each, in the order of KvRowFormat

  constexpr bool has(KvRowFormat format) const { return takes[static_cast<int>(format)] != 0; }
  constexpr bool has_all(const Dsv4Formats& others) const {
    for (int i = 0; i < 4; ++i) {
      if (takes[i] < others.takes[i]) {
        return false;
      }
    }
    return true;
  }
  constexpr int count() const { return takes[0] + takes[1] + takes[2] + takes[3]; }
  constexpr bool has_one() const { return count() == 1; }
  constexpr KvRowFormat first() const {
    int i = 0;
    while (takes[i] == 0) {
      ++i;
    }
    return static_cast<KvRowFormat>(i);
  }
};

// A call is launched with the first set that has all of its formats. The last has any.
inline constexpr Dsv4Formats kDsv4Formats[] = {
    // bf16, e4m3_bf16, e4m3, e2m1
    {0, 1, 0, 0},  // DeepSeek-V4
    {0, 0, 1, 0},  // V4.1's rows of 528 bytes
    {0, 0, 0, 1},  // and of 288
    {0, 0, 1, 1},  // V4.1: both
    {1, 0, 0, 0},  // BF16
    {1, 1, 1, 1},  // any
};
inline constexpr int kDsv4FormatsCount = sizeof(kDsv4Formats) / sizeof(kDsv4Formats[0]);

// That set's number.
constexpr int first_set_with(const Dsv4Formats& formats) {
  int set = 0;
  while (!kDsv4Formats[set].has_all(formats)) {
    ++set;
  }
  return set;
}

}  // namespace tilewright::cuda
