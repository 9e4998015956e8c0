// The online softmax of flash, whose reference follows the row's maximum lazily.
//
// P = exp2(s * scale_log2 - r), with l and O as sums under the same r: any reference will do that
// keeps P in range. K6 takes the running maximum, which it finds over all lanes of a row for each
// tile of keys, and multiplies l and O by what it grows. Here the reference stays until a score
// lies more than kSlack_log2 above it. Whether one does a thread asks of its own scores alone: no
// shuffles, and next to no scaling after a row's first tile. A row's reference depends on that
// row's scores and on no other's, whatever rows share a warp.
//
// Source    FlashAttention-4, the conditional rescaling of the online softmax.
#pragma once

#include <cfloat>

#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

inline constexpr float kSlack_log2 = 8.0f;  // P up to 256: in range in BF16, FP16 and as FP32 sums

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

  // Does the maximum m of row i ask for another reference?
  __device__ bool is_beyond(int i, float m_of_row, float scale_log2) const {
    return fmaf(m_of_row, scale_log2, -reference[i]) > kSlack_log2;
  }
};

// Moves the reference of row i to the row's maximum, if that is beyond it. Returns what the sums
// under the old one are to be multiplied by, 1 where it stays.
template <typename TiledMma, int kRows>
__device__ float move_reference(LazyRows<kRows>& rows, int i, float scale_log2) {
  const float m = row_reduce<TiledMma>(rows.m[i], [](float a, float b) { return fmaxf(a, b); });
  const float old = rows.reference[i];
  rows.reference[i] = rows.is_beyond(i, m, scale_log2) ? m * scale_log2 : old;
  return exp2_approx(old - rows.reference[i]);
}

// One step: S (rows, keys) becomes P. Returns whether O is to be multiplied, by a factor for each
// row: the same for all of a warp, though not of a warpgroup. A row's maximum is looked for under
// the exponentials of the row before (after()). In the first step every row wants a reference.
template <bool kIsFirst, typename TiledMma, int kRows, typename TensorS>
__device__ bool lazy_softmax_step(TensorS& rS, LazyRows<kRows>& rows, float scale_log2,
                                  float (&factor)[kRows]) {
  bool moved = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float m = i > 0 ? after(rows.m[i], rows.m[i - 1]) : rows.m[i];
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      m = fmaxf(m, rS(i, j));
    }
    rows.m[i] = m;
    factor[i] = 1.0f;
    if (kIsFirst || __any_sync(0xffffffffu, rows.is_beyond(i, m, scale_log2))) {
      rows.m[i] =
          i > 0 ? after(m, rows.l[i - 1]) : m;  // else that row's sums come after the branch
      factor[i] = move_reference<TiledMma>(rows, i, scale_log2);
      rows.l[i] *= factor[i];
      moved = true;
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
