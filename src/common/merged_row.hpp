// The arithmetic by which parts of an attention's row become one, as tilewright/merge_states.hpp
// states it, for CPU and GPU alike.
#pragma once

#include <cmath>
#include <limits>

#include "common/divisor.hpp"

namespace tilewright {

// The statistics of a row: the reference of its exponentials, and their sum.
struct MergedRow {
  float m = -std::numeric_limits<float>::infinity();
  float l = 0.0f;
};

TILEWRIGHT_HOST_DEVICE inline bool is_empty_part(float m) {
  return m == -std::numeric_limits<float>::infinity();
}

// Raises the reference to that of one more part. A NaN does not become the reference: it gets into
// the sums by its weight.
TILEWRIGHT_HOST_DEVICE inline float raised(float reference, float m) {
  return m > reference ? m : reference;
}

// The weight of a part that is not empty. It is 1 if both are the same infinity.
TILEWRIGHT_HOST_DEVICE inline float part_weight(float m, float reference) {
  return m == reference ? 1.0f : std::exp(m - reference);
}

// What the weighted sum of the parts' o is multiplied by.
TILEWRIGHT_HOST_DEVICE inline float output_factor(const MergedRow& row, bool is_normalized) {
  if (is_normalized) {
    return row.l == 0.0f ? 0.0f : 1.0f / row.l;
  }
  return row.l == row.l ? 1.0f : row.l;  // a NaN statistic makes all of the row NaN
}

TILEWRIGHT_HOST_DEVICE inline float row_max_of(const MergedRow& row) {
  return row.l == row.l ? row.m : row.l;
}

TILEWRIGHT_HOST_DEVICE inline float lse_of(const MergedRow& row) {
  return row.l == 0.0f ? -std::numeric_limits<float>::infinity() : row.m + std::log(row.l);
}

}  // namespace tilewright
