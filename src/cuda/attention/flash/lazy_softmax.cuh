// The online softmax of flash, whose reference follows the row's maximum lazily.
//
// P = exp2(s * scale_log2 - r), with l and O as sums under the same r: any reference will do that
// keeps P in range. K6 takes the running maximum, which it finds over all lanes of a row for each
// tile of keys, and multiplies l and O by what it grows. Here the reference stays as long as no P
// is more than 1 and than an eighth of l, nor more than 256. Whether one is a thread asks of its
// own scores and sum alone: no shuffles, and next to no scaling after a row's first tiles. So a
// maximum that P is not taken against, and is rounded with, weighs a ninth at most: the P of one
// that weighs more is 1, as exact as in K6. A row's reference depends on that row's scores and on
// no other's, whatever rows share a warp.
//
// Source    FlashAttention-4, the conditional rescaling of the online softmax; the bound by l is
//           our own.
#pragma once

#include <cfloat>

#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// log2(x) in one MUFU instruction, -infinity for 0.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// How far a score may lie above the reference, in units of log2, where P sums up to l.
__device__ __forceinline__ float slack_log2(float l) {
  constexpr float kMost_log2 = 8.0f;  // P is in range in FP16, too
  return fminf(fmaxf(log2_approx(0.125f * l), 0.0f), kMost_log2);
}

// The statistics of the rows that a thread holds: maxima m of the raw scores and sums l, both over
// this thread's columns alone, and the references, in units of log2. The first one is below every
// score, but not -infinity: rows that have seen no key yet have P = 0.
template <int kRows>
struct LazyRows {
  float m[kRows];
  float l[kRows];
  float reference[kRows];

  __device__ LazyRows() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      m[i] = kMinusInf;
      l[i] = 0.0f;
      reference[i] = -FLT_MAX;
    }
  }
};

// Moves the reference of row i to the row's maximum, if that is beyond what the row's sum allows.
// Returns what the sums under the old one are to be multiplied by, 1 where it stays.
template <typename TiledMma, int kRows>
__device__ float move_reference(LazyRows<kRows>& rows, int i, float scale_log2) {
  const float m = row_reduce<TiledMma>(rows.m[i], [](float a, float b) { return fmaxf(a, b); });
  const float l = row_reduce<TiledMma>(rows.l[i], [](float a, float b) { return a + b; });
  const float old = rows.reference[i];
  rows.reference[i] = m * scale_log2 > old + slack_log2(l) ? m * scale_log2 : old;
  return exp2_approx(old - rows.reference[i]);
}

// One step: S (rows, keys) becomes P. Returns whether O is to be multiplied, by a factor for each
// row: the same for all of a warp, though not of a warpgroup. A row's maximum is looked for under
// the exponentials of the row before (after()). In the first step every row wants a reference.
template <bool kIsFirst, typename TiledMma, int kRows, typename TensorS>
__device__ bool lazy_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                  float (&factor)[kRows]) {
  constexpr unsigned kAll = 0xffffffffu;
  bool moved = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    // By this thread's sum, which is less than the row's: no row that wants to move is missed.
    const float limit = rows.reference[i] + slack_log2(rows.l[i]);
    float m = i > 0 ? after(rows.m[i], rows.m[i - 1]) : rows.m[i];
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      m = fmaxf(m, rS(i, j));
    }
    rows.m[i] = m;
    factor[i] = 1.0f;
    if (kIsFirst || __any_sync(kAll, m * scale_log2 > limit)) {
      if (i > 0) {  // else ptxas moves that row's sums behind this branch
        rows.m[i] = after(m, rows.l[i - 1]);
      }
      factor[i] = move_reference<TiledMma>(rows, i, scale_log2);
      rows.l[i] *= factor[i];
      moved = moved || __any_sync(kAll, factor[i] != 1.0f);
    }
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      rS(i, j) = exp2_approx(fmaf(rS(i, j), scale_log2, -rows.reference[i]));
      rows.l[i] += rS(i, j);
    }
  }
  return moved;
}

}  // namespace tilewright::cuda
