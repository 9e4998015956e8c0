// The results that belong to a row of O: m, l and the LSE, and what a sink does to them.
//
// `Params` are the params of any operation that has these results. Its members are `sinks`,
// `statistics`, and `lse` with `lse_stride`; `lse` is null if the caller does not ask for it. A
// caller that asks for the maximum also asks for the sum, and gets un-normalised O.
#pragma once

#include "common/attention_parts.hpp"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/common/numeric.cuh"

namespace tilewright::cuda {

// A row's statistics in natural units: m, its maximum or another reference; l, the sum of exp(s -
// m); and the factor by which sums taken under an earlier reference must be scaled.
struct RowResult {
  float m;
  float l;
  float rescale;
};

// The row's statistics with its maximum `m` as the reference.
__device__ inline RowResult under_maximum(const RowResult& row, float m) {
  const float rescale = m == kMinusInf ? 1.0f : exp2_approx((row.m - m) * kLog2e);
  return {.m = m, .l = row.l * rescale, .rescale = row.rescale * rescale};
}

// The row's statistics with its sink, which is one more score with a value of 0. An infinite sink
// has all the weight; a NaN makes the row's results NaN.
__device__ inline RowResult with_sink(const RowResult& row, float sink) {
  const float m_seen = row.l == 0.0f ? kMinusInf : row.m;
  const float m_new = m_seen > sink ? m_seen : sink;
  const float reference = m_new == kMinusInf ? 0.0f : m_new;
  const float rescale = exp2_approx((m_seen - reference) * kLog2e);
  const float weight = sink == -kMinusInf ? 1.0f : exp2_approx((sink - reference) * kLog2e);
  return {.m = m_new, .l = fmaf(row.l, rescale, weight), .rescale = row.rescale * rescale};
}

// The same for all rows of a thread, which are of one head.
template <int kRows>
__device__ void add_sink(RowResult (&result)[kRows], float sink) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    result[i] = with_sink(result[i], sink);
  }
}

// The factors that O must be scaled by, which divide it by l if it is to be normalised.
template <int kRows>
__device__ void output_factors(const RowResult (&result)[kRows], bool is_normalized,
                               float (&factor)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float divisor = is_normalized ? result[i].l : 1.0f;
    const float quotient = __fdividef(result[i].rescale, divisor);
    factor[i] = divisor == 0.0f ? 0.0f : quotient;
  }
}

// The row's statistics, with the head's sink if there is one.
template <typename Params>
__device__ RowResult row_result(const Params& p, int head, float m, float l) {
  const RowResult result{.m = m, .l = l, .rescale = 1.0f};
  return p.sinks.logits ? with_sink(result, p.sinks.logits[head * p.sinks.stride]) : result;
}

template <typename Params>
__device__ bool wants_statistics(const Params& p) {
  return p.lse != nullptr || p.statistics.max != nullptr;
}

// Stores those of LSE, m and l that the caller asks for. fmaxf drops a NaN, but a sum keeps it: l
// tells whether the row has one.
template <typename Params>
__device__ void store_statistics(const Params& p, int batch, int row, int head,
                                 const RowResult& result) {
  if (p.lse != nullptr) {
    *row_pointer<float>(p.lse, p.lse_stride, batch, row, head) =
        result.l == 0.0f ? kMinusInf : result.m + logf(result.l);
  }
  if (p.statistics.max != nullptr) {
    *row_pointer<float>(p.statistics.max, p.statistics.max_stride, batch, row, head) =
        isnan(result.l) ? result.l : result.m;
    *row_pointer<float>(p.statistics.sum, p.statistics.sum_stride, batch, row, head) = result.l;
  }
}

}  // namespace tilewright::cuda
