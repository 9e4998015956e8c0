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

// The maximum of row i and this thread's columns of S. after() makes the compiler search it while
// the exponentials of the row before are computed.
template <int kRows, typename TensorS>
__device__ float thread_max(const TensorS& rS, const LazyRows<kRows>& rows, int i) {
  return max_with_row(i > 0 ? after(rows.m[i], rows.m[i - 1]) : rows.m[i], rS, i);
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
    rows.m[i] = row_max<TiledMma>(thread_max(rS, rows, i));
    factor[i] = move_reference(rows, i, fmaxf(rows.m[i] * scale_log2, -FLT_MAX));
    exponentials(rS, i, scale_log2, rows.reference[i], rows.l[i]);
  }
}

// One step that keeps the references, except those of rows whose P exceeds the bound. Returns
// whether O must be scaled by `factor`. All lanes of a warp return the same, but not all warps.
template <typename TiledMma, int kRows, typename TensorS>
__device__ bool lazy_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                  float most_log2, float (&factor)[kRows]) {
  bool moved = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows.m[i] = thread_max(rS, rows, i);
    factor[i] = 1.0f;
    if (__any_sync(0xffffffffu, rows.p_log2(i, rows.m[i], scale_log2) > most_log2)) {
      if (i > 0) {  // else ptxas moves the sums of row i - 1 behind this branch
        rows.m[i] = after(rows.m[i], rows.l[i - 1]);
      }
      const float m = row_max<TiledMma>(rows.m[i]);
      const bool is_beyond = rows.p_log2(i, m, scale_log2) > most_log2;
      factor[i] = move_reference(rows, i, is_beyond ? m * scale_log2 : rows.reference[i]);
      moved = true;
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
