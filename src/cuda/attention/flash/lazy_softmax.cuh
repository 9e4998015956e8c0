// The online softmax of flash, whose reference follows the row's maximum lazily.
//
// P = exp2(s * scale_log2 - r), with l and O as sums under the same r: any reference will do that
// keeps P in range. K6 takes the running maximum, which it finds over all lanes of a row for each
// tile of keys, and multiplies l and O by what it grows. So do a tile's first step here, those with
// a mask or a soft cap, and, where not causal, one behind few keys. The others keep the reference
// as long as no P is more than a bound, which a thread asks of its own scores: no shuffles, and
// next to no scaling. A row's reference depends on its own scores alone, whatever rows share a
// warp.
//
// The largest P is 1 in K6, which rounding to 16 bits leaves as it is. Here it may be any number up
// to the bound, and is rounded. Hence two measures: the bound is low, but where causal, since rows
// that begin with few keys would move at once; and O is divided by the sum with the largest P as
// rounded: where a key has all the weight, that is 1 again. l itself, and the LSE, stay exact.
//
// Source    FlashAttention-4, the conditional rescaling of the online softmax; the largest P's part
//           in the divisor is our own.
#pragma once

#include <cfloat>

#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// What no P may exceed, in units of log2: in range in FP16, too.
__device__ inline float most_p_log2(bool is_causal) { return is_causal ? 8.0f : 3.0f; }

// Rows' statistics, of which the maxima, too, may be over this thread's columns alone, and their
// references, in units of log2. The first one is below every score, but not -infinity: rows that
// have seen no key yet have P = 0.
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

// The maximum of row i with this thread's columns of S. It is looked for under the exponentials of
// the row before (after()).
template <int kRows, typename TensorS>
__device__ float thread_max(const TensorS& rS, const LazyRows<kRows>& rows, int i) {
  return max_with_row(i > 0 ? after(rows.m[i], rows.m[i - 1]) : rows.m[i], rS, i);
}

// Moves the reference of row i, and l with it. Returns what O is to be multiplied by.
template <int kRows>
__device__ float move_reference(LazyRows<kRows>& rows, int i, float reference) {
  const float factor = exp2_approx(rows.reference[i] - reference);
  rows.reference[i] = reference;
  rows.l[i] *= factor;
  return factor;
}

// One step: S (rows, keys) becomes P under the maxima so far. `factor` is what O has still to be
// multiplied by.
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

// One step under references that stay, but for rows that are beyond them. Returns whether O is to
// be multiplied by `factor`: the same for all of a warp, though not of a warpgroup.
template <typename TiledMma, int kRows, typename TensorS>
__device__ bool lazy_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                  float most_log2, float (&factor)[kRows]) {
  bool moved = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows.m[i] = thread_max(rS, rows, i);
    factor[i] = 1.0f;
    if (__any_sync(0xffffffffu, rows.p_log2(i, rows.m[i], scale_log2) > most_log2)) {
      if (i > 0) {  // else ptxas moves that row's sums behind this branch
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

// What O is to be multiplied by, where the largest P of row i was rounded: l by what it would be
// with that P as rounded. `m` and `l` are over all of the row.
template <typename Element, int kRows>
__device__ float rounding_of_largest(const LazyRows<kRows>& rows, int i, float m, float l,
                                     float scale_log2) {
  const float largest = exp2_approx(rows.p_log2(i, m, scale_log2));
  const float rounded = static_cast<float>(static_cast<Element>(largest));
  const float quotient = __fdividef(l, l + (rounded - largest));
  return l > 0.0f ? quotient : 1.0f;
}

}  // namespace tilewright::cuda
