// An online softmax whose reference follows the row's maximum lazily.
//
// P = exp2(s * scale_log2 - r), and l and O are sums taken with the same reference r. Any r that
// keeps P in range gives the same result. K6 takes the running maximum as r: in every step, over
// one key tile, the lanes of a row find the maximum by shuffles, and l and O are rescaled. Here
// three kinds of steps do so: the first step of a tile of queries, steps with a mask or a soft cap
// and, without a causal mask, a step that follows a key tile of which less than half is seen. All
// other steps keep r as long as no P exceeds a bound. For this each thread checks its own scores,
// so that such a step takes no shuffles and hardly ever rescales O. The r of a row depends on the
// scores of that row only, not on the other rows of its warp.
//
// Such a step compares scores by their bits, as integers: one instruction finds the largest of
// three of these, but only of two numbers. The bits of numbers from 0 up are in the numbers' order.
// Those of negative numbers are negative integers in the opposite order. So if the largest integer
// is negative, all scores are, and the smallest integer is the largest score.
//
// In K6 a row's largest P is 1, which 16 bits hold exactly. Here it is any number up to the bound,
// and so it is rounded. This has two consequences. The bound is low, except with a causal mask,
// where rows begin with few keys and would soon exceed a low bound. And O is divided by a sum that
// contains the rounded value of the largest P, so that a key with all the weight still has weight
// 1. l itself and the LSE are computed from the unrounded P.
//
// Source    FlashAttention-4, the conditional rescaling of the online softmax. The rounded largest
//           P in the divisor is our own.
#pragma once

#include <cfloat>

#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/row_results.cuh"

namespace tilewright::cuda {

// The binary logarithm of P's bound, which is within FP16's range, too.
__device__ inline float most_p_log2(bool is_causal) { return is_causal ? 8.0f : 3.0f; }

// The rows' statistics, and their references in units of log2. The maxima, too, may be over this
// thread's columns alone. The first reference is finite and below every score, so that a row that
// has seen no key yet has P = 0.
template <int kRows>
struct LazyRows : RowState<kRows> {
  float reference[kRows];

  __device__ LazyRows() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      reference[i] = -FLT_MAX;
    }
  }

  // P of a score in row i, in units of log2.
  __device__ float p_log2(int i, float score, float scale_log2) const {
    return fmaf(score, scale_log2, -reference[i]);
  }
};

// The maximum of row i so far. after() makes the compiler search a new one while the exponentials
// of the row before are computed.
template <int kRows>
__device__ float max_so_far(const LazyRows<kRows>& rows, int i) {
  return i > 0 ? after(rows.m[i], rows.m[i - 1]) : rows.m[i];
}

// The largest integer, or the smallest one, among the bits of m and of this thread's columns of
// row i of S.
template <bool kLargest, typename TensorS>
__device__ float extreme_bits(float m, const TensorS& rS, int i) {
  int found = __float_as_int(m);
#pragma unroll
  for (int j = 0; j < cute::size<1>(rS); ++j) {
    const int bits = __float_as_int(rS(i, j));
    found = kLargest ? max(found, bits) : min(found, bits);
  }
  return __int_as_float(found);
}

// Sets row i's reference and scales its l to it. Returns the factor by which O must be scaled.
template <int kRows>
__device__ float move_reference(LazyRows<kRows>& rows, int i, float reference) {
  const float factor = exp2_approx(rows.reference[i] - reference);
  rows.reference[i] = reference;
  rows.l[i] *= factor;
  return factor;
}

// One step whose references are the maxima so far: S (rows, keys) becomes P. The caller must still
// scale O by `factor`.
template <typename TiledMma, int kRows, typename TensorS>
__device__ void eager_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                   float (&factor)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows.m[i] = row_max<TiledMma>(max_with_row(max_so_far(rows, i), rS, i));
    factor[i] = move_reference(rows, i, fmaxf(rows.m[i] * scale_log2, -FLT_MAX));
    exponentials(rS, i, scale_log2, rows.reference[i], rows.l[i]);
  }
}

// One step that keeps the references, except those of rows whose P exceeds the bound. Returns
// whether O must be scaled by `factor`. All lanes of a warp return the same, but not all warps.
template <typename TiledMma, int kRows, typename TensorS>
__device__ bool lazy_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                  float most_log2, float (&factor)[kRows]) {
  constexpr unsigned kAll = 0xffffffffu;
  bool moved = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float before = max_so_far(rows, i);
    float m = extreme_bits<true>(before, rS, i);
    factor[i] = 1.0f;
    const auto is_beyond = [&] { return rows.p_log2(i, m, scale_log2) > most_log2; };
    if (__any_sync(kAll, __float_as_int(m) < 0 || is_beyond())) {
      if (i > 0) {  // else ptxas moves the sums of row i - 1 behind this branch
        m = after(m, rows.l[i - 1]);
      }
      m = __float_as_int(m) < 0 ? extreme_bits<false>(before, rS, i) : m;
      rows.m[i] = m;
      if (__any_sync(kAll, is_beyond())) {
        m = row_max<TiledMma>(m);
        factor[i] = move_reference(rows, i, is_beyond() ? m * scale_log2 : rows.reference[i]);
        moved = true;
      }
    } else {
      rows.m[i] = m;
    }
    exponentials(rS, i, scale_log2, rows.reference[i], rows.l[i]);
  }
  return moved;
}

// The factor that O must be scaled by because row i's largest P was rounded: l divided by the l
// that has that P as rounded. `m` and `l` are over the whole row.
template <typename Element, int kRows>
__device__ float rounding_of_largest(const LazyRows<kRows>& rows, int i, float m, float l,
                                     float scale_log2) {
  const float largest = exp2_approx(rows.p_log2(i, m, scale_log2));
  const float rounded = static_cast<float>(static_cast<Element>(largest));
  const float quotient = __fdividef(l, l + (rounded - largest));
  return l > 0.0f ? quotient : 1.0f;
}

// The results of a tile's rows: under the references or, if `under_maxima`, under the rows' maxima.
// As in add_sink() and output_factors(), which follow, each step is taken for all rows of a thread
// together and without branches: steps are mostly latency, which short sequences feel.
template <typename Element, typename TiledMma, int kRows>
__device__ void finish_rows(const LazyRows<kRows>& rows, float scale_log2, bool under_maxima,
                            RowResult (&result)[kRows]) {
  float m[kRows];
  float l[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    m[i] = row_max<TiledMma>(rows.m[i]);
    l[i] = row_sum<TiledMma>(rows.l[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    result[i] = {.m = rows.reference[i] * (1.0f / kLog2e),
                 .l = l[i],
                 .rescale = rounding_of_largest<Element>(rows, i, m[i], l[i], scale_log2)};
  }
  if (under_maxima) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      result[i] = under_maximum(result[i], m[i] * (scale_log2 / kLog2e));
    }
  }
}

}  // namespace tilewright::cuda
