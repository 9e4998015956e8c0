// The online softmax on an accumulator of scores. A thread has some columns of some rows.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"

namespace tilewright::cuda {

// The running statistics of a thread's rows: m, the maxima of the raw scores, and l, the sums over
// this thread's columns alone.
template <int kRows>
struct RowState {
  float m[kRows];
  float l[kRows];

  __device__ RowState() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      m[i] = kMinusInf;
      l[i] = 0.0f;
    }
  }
};

// Returns `value`, and makes the compiler compute `earlier` first.
__device__ __forceinline__ float after(float value, float earlier) {
  asm("{.reg .f32 t; min.f32 t, %1, 0fFF800000; max.f32 %0, %0, t;}" : "+f"(value) : "f"(earlier));
  return value;
}

// The maximum of m and this thread's columns of row i of S. Several chains of comparisons take more
// instructions than one, and less time if nothing else runs meanwhile.
template <int kChains = 1, typename TensorS>
__device__ float max_with_row(float m, const TensorS& rS, int i) {
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) {
    chain[c] = m;
  }
#pragma unroll
  for (int j = 0; j < cute::size<1>(rS); ++j) {
    chain[j % kChains] = fmaxf(chain[j % kChains], rS(i, j));
  }
#pragma unroll
  for (int c = 1; c < kChains; ++c) {
    chain[0] = fmaxf(chain[0], chain[c]);
  }
  return chain[0];
}

// Row i of S becomes P = exp2(S * scale_log2 - reference), and P's sum is added to l.
template <typename TensorS>
__device__ void exponentials(TensorS& rS, int i, float scale_log2, float reference, float& l) {
#pragma unroll
  for (int j = 0; j < cute::size<1>(rS); ++j) {
    rS(i, j) = exp2_approx(fmaf(rS(i, j), scale_log2, -reference));
    l += rS(i, j);
  }
}

// One step of the online softmax: S (rows, keys) becomes P = exp2((S - m) * scale_log2) under the
// new maxima m, and l is scaled to them. The caller must still scale O by `correction`. That is 1
// where a maximum stays, since both products are rounded alike; a factor next to 1 for each key
// tile would add up in the LSE. A row that has seen no key keeps m = -infinity and P = 0. P, l and
// O come out scaled by 2^p_log2.
//
// after() orders the work: a row's maximum is searched while the exponentials of the row before are
// computed. Otherwise ptxas searches all maxima first, while the unit of exponentials idles. Short
// rows are left to ptxas. kChains is max_with_row()'s.
template <typename TiledMma, int kChains = 1, int kRows, typename TensorS>
__device__ void softmax_step(TensorS& rS, RowState<kRows>& state, float scale_log2,
                             float (&correction)[kRows], float p_log2 = 0.0f) {
  constexpr bool kInOrder = decltype(cute::size<1>(rS))::value >= 32;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float m = kInOrder && i > 0 ? after(state.m[i], state.m[i - 1]) : state.m[i];
    const float m_new = row_max<TiledMma>(max_with_row<kChains>(m, rS, i));
    const float reference = m_new == kMinusInf ? 0.0f : __fmul_rn(m_new, scale_log2);
    correction[i] = exp2_approx(__fmul_rn(state.m[i], scale_log2) - reference);
    state.m[i] = m_new;
    state.l[i] *= correction[i];
    exponentials(rS, i, scale_log2, reference - p_log2, state.l[i]);
  }
}

}  // namespace tilewright::cuda
