// A WGMMA accumulator in the registers where it lies: its rows, their reductions over lanes, and
// its values in 16 bits.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/common/numeric.cuh"
#include "cuda/common/wgmma_layout.cuh"

namespace tilewright::cuda {

// Views an accumulator's registers or coordinates as (rows of this thread, its columns).
template <typename TiledMma, typename Tensor>
__device__ auto by_rows(Tensor&& tensor) {
  return cute::make_tensor(tensor.data(), rows_by_columns<TiledMma>(tensor.layout()));
}

// Combines a value over the lanes that hold one row of the accumulator.
template <typename TiledMma, typename Op>
__device__ float row_reduce(float value, Op op) {
  constexpr RowLanes kLanes = row_lanes<TiledMma>();
#pragma unroll
  for (int offset = kLanes.first; offset < kLanes.first * kLanes.count; offset *= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

template <typename TiledMma>
__device__ float row_max(float m) {
  return row_reduce<TiledMma>(m, [](float a, float b) { return fmaxf(a, b); });
}

template <typename TiledMma>
__device__ float row_sum(float l) {
  return row_reduce<TiledMma>(l, [](float a, float b) { return a + b; });
}

// Scales each row of O by its factor.
template <int kRows, typename TensorO>
__device__ void scale_rows(TensorO& rO, const float (&factor)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < cute::size<1>(rO); ++j) {
      rO(i, j) *= factor[i];
    }
  }
}

// Rounds two values to CuTe's bfloat16_t or half_t, into one word.
template <typename Element>
__device__ std::uint32_t pack_x2(float low, float high) {
  return cute::is_same_v<Element, cute::bfloat16_t> ? pack_bf16x2(low, high)
                                                    : pack_fp16x2(low, high);
}

// Rounds an accumulator's registers to 16 bits, in order and in pairs.
template <typename TensorFrom, typename TensorTo>
__device__ void round_to_16_bits(const TensorFrom& from, TensorTo& to) {
  auto pairs = cute::recast<std::uint32_t>(to);
#pragma unroll
  for (int i = 0; i < cute::size(pairs); ++i) {
    pairs(i) = pack_x2<typename TensorTo::value_type>(from(2 * i), from(2 * i + 1));
  }
}

}  // namespace tilewright::cuda
