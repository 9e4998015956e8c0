// Rows of heads as vectors of eight elements, rotated by their positions (RoPE).
//
// A vector's partners lie beside its elements or half of the rotated dims away: those are loaded
// again, from the L1 cache. Products and sums are not fused, so that the CPU's bits are these. Dims
// or tables that are not made of whole vectors take a path of single loads.
#pragma once

#include <cstdint>

#include "common/rotary.hpp"
#include "cuda/common/eight_values.cuh"
#include "cuda/common/rotation.cuh"

namespace tilewright::cuda {

inline constexpr int kVector = 8;  // elements

// A head of a row, of which the first `rotary_dims` elements are rotated as at `position`.
template <typename T>
struct SourceRow {
  // Eight elements from `first` on.
  __device__ Float8 eight(int first) const {
    Float8 values = load_eight(x + first);
    if (first >= rotary_dims) {
      return values;
    }
    if (rotary.is_interleaved && first + kVector <= rotary_dims) {
      rotate_neighbours(values, first);
    } else if (!rotary.is_interleaved && rotary_dims % (2 * kVector) == 0) {
      rotate_halves(values, first);
    } else {
      rotate_each(values, first);
    }
    return values;
  }

  __device__ void rotate_neighbours(Float8& values, int first) const {
    const auto angles = Angles<kVector / 2>::template load<T>(rotary, position, first / 2);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const float x1 = values.value[2 * i];
      const float x2 = values.value[2 * i + 1];
      values.value[2 * i] = rotated_first(x1, x2, angles.cos[i], angles.sin[i]);
      values.value[2 * i + 1] = rotated_second(x1, x2, angles.cos[i], angles.sin[i]);
    }
  }

  __device__ void rotate_halves(Float8& values, int first) const {
    const int half = rotary_dims / 2;
    const bool is_second = first >= half;
    const int pair = is_second ? first - half : first;
    const Float8 partners = load_eight(x + (is_second ? pair : first + half));
    const auto angles = Angles<kVector>::template load<T>(rotary, position, pair);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float value = values.value[i];
      const float partner = partners.value[i];
      values.value[i] = is_second ? rotated_second(partner, value, angles.cos[i], angles.sin[i])
                                  : rotated_first(value, partner, angles.cos[i], angles.sin[i]);
    }
  }

  __device__ void rotate_each(Float8& values, int first) const {
    const int half = rotary_dims / 2;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int dim = first + i;
      if (dim >= rotary_dims) {
        continue;
      }
      const bool is_second = rotary.is_interleaved ? dim % 2 != 0 : dim >= half;
      const int step = rotary.is_interleaved ? 1 : half;
      const int dim1 = is_second ? dim - step : dim;
      const auto angle =
          Angles<1>::template load<T>(rotary, position, rotary.is_interleaved ? dim / 2 : dim1);
      const auto x1 = static_cast<float>(x[dim1]);
      const auto x2 = static_cast<float>(x[dim1 + step]);
      values.value[i] = is_second ? rotated_second(x1, x2, angle.cos[0], angle.sin[0])
                                  : rotated_first(x1, x2, angle.cos[0], angle.sin[0]);
    }
  }

  const T* x;
  const Rotary& rotary;
  int rotary_dims;
  std::int64_t position;
};

}  // namespace tilewright::cuda
