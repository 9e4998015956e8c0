// What the params of attention operations are made of.
#pragma once

#include <cstdint>
#include <limits>

#include "common/strides.hpp"

namespace tilewright {

// A window's side without a limit: more than any distance, and not too much to be added to one.
inline constexpr int kNoLimit = std::numeric_limits<int>::max() / 2;

// How far a query sees to each side of the diagonal, in keys.
struct KeyWindow {
  int left = kNoLimit;
  int right = kNoLimit;
};

// A logit for each head; null: none.
struct Sinks {
  const float* logits = nullptr;
  std::int64_t stride = 0;
};

// Where sequences begin and end that lie one after the other in a tensor. Null if each sequence is
// a batch entry of the tensor's length.
struct PackedRows {
  const int* cu_seqlens = nullptr;
};

// Where sequences' keys begin and end, as of PackedRows, and how many of each sequence count.
struct KvLengths {
  const int* cu_seqlens = nullptr;
  const int* used = nullptr;  // null: all of them
};

// An un-normalised result's maximum and sum of each row. Null otherwise.
struct RowStatistics {
  float* max = nullptr;
  float* sum = nullptr;
  OuterStrides max_stride;
  OuterStrides sum_stride;
};

}  // namespace tilewright
