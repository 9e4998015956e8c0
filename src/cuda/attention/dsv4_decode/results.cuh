// What becomes of an item's O, of which a consumer has kColumns columns in registers: parts are
// merged, the sink is counted, O is normalised, its last dims are rotated back, and it is stored.
#pragma once

#include <cuda_fp8.h>

#include "common/kv_row.hpp"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/attention/dsv4_decode/softmax.cuh"
#include "cuda/common/ticket.cuh"

namespace tilewright::cuda::dsv4 {

// ---- Parts in the workspace

// A thread's share of a slot: its accumulator in pieces of four registers, beside those of the
// consumer's other threads. `columns` is where the consumer's columns begin.
template <typename TensorO>
__device__ float4* pieces_of(const Launch& launch, int unit, int column0, const TensorO&) {
  return launch.o + std::int64_t{unit} * (kRows * kDims / 4) + column0 * (kRows / 4) +
         threadIdx.x % kWarpgroupThreads;
}

// Leaves a part's O and statistics.
template <typename TensorO>
__device__ void leave_part(const Launch& launch, int unit, int column0, bool has_statistics,
                           const TensorO& tOrO, const RowSoFar (&rows)[kThreadRows]) {
  float4* const pieces = pieces_of(launch, unit, column0, tOrO);
#pragma unroll
  for (int i = 0; i < cute::size(tOrO) / 4; ++i) {
    pieces[i * kWarpgroupThreads] =
        float4{tOrO(4 * i), tOrO(4 * i + 1), tOrO(4 * i + 2), tOrO(4 * i + 3)};
  }
  if (has_statistics && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      launch.statistics[std::int64_t{unit} * kRows + row_of_thread(i)] =
          float4{rows[i].reference, rows[i].max, rows[i].sum, rows[i].rounded_sum};
    }
  }
}

// Both consumers of a block have left their share of a part. Returns whether those of all parts are
// there. `counter` counts the arrivals; `ticket` is a place in SMEM.
__device__ inline bool arrives_last(const Launch& launch, int parts, int counter, int& ticket) {
  constexpr std::uint32_t kBarrier = 3;
  cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroupThreads, kBarrier);
  if (threadIdx.x == blockDim.x - 1) {
    __threadfence();
    const TicketCounter tickets{.word = launch.counters + counter, .epoch = launch.epoch};
    ticket = tickets.take();
    if (ticket == parts - 1) {
      tickets.clear();
    }
    __threadfence();
  }
  cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroupThreads, kBarrier);
  return ticket == parts - 1;
}

// Merges an item's parts in their order. `unit0` is the unit of the first; each is `step` behind
// the one before.
template <typename Mma, typename TensorO>
__device__ void merge_parts(const Launch& launch, int unit0, int step, int parts, int column0,
                            TensorO& tOrO, RowSoFar (&rows)[kThreadRows]) {
#pragma unroll
  for (RowSoFar& row : rows) {
    row = RowSoFar{};
  }
  const auto statistics_of = [&](int part, int i) {
    return __ldcg(&launch.statistics[(std::int64_t{unit0} + std::int64_t{part} * step) * kRows +
                                     row_of_thread(i)]);
  };
  for (int part = 0; part < parts; ++part) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      rows[i].reference = fmaxf(rows[i].reference, statistics_of(part, i).x);
    }
  }
  cute::clear(tOrO);
  auto rO = by_rows<Mma>(tOrO);
  for (int part = 0; part < parts; ++part) {
    float weight[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const float4 its = statistics_of(part, i);
      weight[i] = its.x == kMinusInf ? 0.0f : exp2_approx(its.x - rows[i].reference);
      rows[i].max = fmaxf(rows[i].max, its.y);
      rows[i].sum = fmaf(its.z, weight[i], rows[i].sum);
      rows[i].rounded_sum = fmaf(its.w, weight[i], rows[i].rounded_sum);
    }
    const float4* const pieces = pieces_of(launch, unit0 + part * step, column0, tOrO);
#pragma unroll
    for (int j = 0; j < cute::size<1>(rO); j += 2) {  // registers (row 0, row 0, row 1, row 1)
      const float4 piece = __ldcg(pieces + j / 2 * kWarpgroupThreads);
      rO(0, j) = fmaf(piece.x, weight[0], rO(0, j));
      rO(0, j + 1) = fmaf(piece.y, weight[0], rO(0, j + 1));
      rO(1, j) = fmaf(piece.z, weight[1], rO(1, j));
      rO(1, j + 1) = fmaf(piece.w, weight[1], rO(1, j + 1));
    }
  }
}

// ---- The caller's results

// Rotates the pairs of neighbouring columns in the last dims of row kRow of O back by the
// position's angles. column0 is that of rO's first column.
template <int kRow, typename TensorO>
__device__ __forceinline__ void rotate_back(const InverseRope& rope, std::int64_t position,
                                            int column0, TensorO& rO) {
  constexpr int kFirst = kDims - kKvRowRotaryDims;
  const bool is_known = position >= 0 && position < rope.max_positions;
  const float* const cos = rope.cos + (is_known ? position : 0) * rope.cos_stride;
  const float* const sin = rope.sin + (is_known ? position : 0) * rope.sin_stride;
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); j += 2) {
    const int column = column0 + 4 * j + 2 * (threadIdx.x % 4);
    if (column >= kFirst) {
      const float c = __ldg(cos + (column - kFirst) / 2);
      const float s = __ldg(sin + (column - kFirst) / 2);
      const float x = rO(kRow, j);
      const float y = rO(kRow, j + 1);
      rO(kRow, j) = fmaf(x, c, y * s);
      rO(kRow, j + 1) = fmaf(y, c, -(x * s));
    }
  }
}

inline constexpr int kGroupColumns = 128;  // of E4M3 output, with one scale
inline constexpr int kGroupRegisters = kGroupColumns / 4;

// Stores row kRow of O as E4M3, 128 columns with one scale.
template <int kRow, typename Mma, typename TensorO>
__device__ __forceinline__ void store_e4m3(const Params& p, const Unit& unit, const Row& row,
                                           int column0, const TensorO& rO) {
  auto* const out = row_pointer<std::uint8_t>(p.o, p.o_stride, unit.request, row.token, row.head);
  float* const scales =
      row_pointer<float>(p.o_scale, p.o_scale_stride, unit.request, row.token, row.head);
#pragma unroll
  for (int j0 = 0; j0 < cute::size<1>(rO); j0 += kGroupRegisters) {
    float amax = 0.0f;
    bool has_nan = false;
#pragma unroll
    for (int j = j0; j < j0 + kGroupRegisters; ++j) {
      amax = fmaxf(amax, fabsf(rO(kRow, j)));
      has_nan |= isnan(rO(kRow, j));
    }
    amax = row_max<Mma>(has_nan ? __int_as_float(0x7f800000) : amax);
    const std::uint32_t byte = e8m0_scale_of(amax);
    const float inverse = inverse_of_e8m0_scale(byte);
    const int group = (column0 + 4 * j0) / kGroupColumns;
    if (row.exists && threadIdx.x % 4 == 0) {
      scales[group * p.o_scale_group_stride] = e8m0_to_float(byte);
    }
#pragma unroll
    for (int j = j0; j < j0 + kGroupRegisters; j += 2) {
      const float2 pair{rO(kRow, j) * inverse, rO(kRow, j + 1) * inverse};
      const auto bytes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      if (row.exists) {
        *reinterpret_cast<std::uint16_t*>(out + column0 + 4 * j + 2 * (threadIdx.x % 4)) = bytes;
      }
    }
  }
}

// A row's results without a sink, under its reference or its maximum. O's own sum is that of the
// rounded P.
__device__ inline RowResult result_of_keys(const RowSoFar& row, bool under_its_maximum) {
  constexpr float kLn2 = 1.0f / kLog2e;
  const float own = __fdividef(row.sum, row.rounded_sum);
  const RowResult result{
      .m = row.reference * kLn2, .l = row.sum, .rescale = row.sum == 0.0f ? 1.0f : own};
  return under_its_maximum ? under_maximum(result, row.max * kLn2) : result;
}

// Stores row kRow of this thread: of O, rO has the columns from column0 on, and of the statistics
// all, if `has_statistics`.
template <int kRow, typename Mma, typename TensorO>
__device__ __forceinline__ void store_result(const Params& p, const Launch& launch,
                                             const Unit& unit, int column0, bool has_statistics,
                                             TensorO& rO, const RowSoFar& so_far) {
  const bool is_normalized = p.statistics.max == nullptr;
  const Row row = row_of(unit, launch.shape, row_of_thread(kRow));
  const RowResult keys = result_of_keys(so_far, !is_normalized);
  RowResult result[1] = {keys};
  if (p.sinks.logits != nullptr && row.exists) {
    add_sink(result, p.sinks.logits[row.head * p.sinks.stride]);
  }
  float factor[1];
  output_factors(result, is_normalized, factor);
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); ++j) {
    rO(kRow, j) *= factor[0];
  }
  if (p.rope.cos != nullptr && row.exists) {
    rotate_back<kRow>(p.rope,
                      p.rope.positions[at(p.rope.positions_stride, unit.request, row.token)],
                      column0, rO);
  }
  if (decltype(cute::size<1>(rO))::value % kGroupRegisters == 0 && p.o_scale != nullptr) {
    store_e4m3<kRow, Mma>(p, unit, row, column0, rO);
  } else if (is_normalized) {
    store_row<Mma>(
        row_pointer<Element>(p.o, p.o_stride, unit.request, row.token, row.head) + column0, rO,
        kRow, row.exists);
  } else {
    store_row<Mma>(row_pointer<float>(p.o, p.o_stride, unit.request, row.token, row.head) + column0,
                   rO, kRow, row.exists);
  }
  if (has_statistics && row.exists && threadIdx.x % 4 == 0) {
    store_statistics(p, unit.request, row.token, row.head, result[0]);
    if (p.lse != nullptr && !p.lse_counts_sink) {
      *row_pointer<float>(p.lse, p.lse_stride, unit.request, row.token, row.head) =
          keys.l == 0.0f ? kMinusInf : keys.m + logf(keys.l);
    }
  }
}

template <typename Mma, typename TensorO>
__device__ __forceinline__ void store_results(const Params& p, const Launch& launch,
                                              const Unit& unit, int column0, bool has_statistics,
                                              TensorO& tOrO, const RowSoFar (&rows)[kThreadRows]) {
  static_assert(kThreadRows == 2);
  auto rO = by_rows<Mma>(tOrO);
  store_result<0, Mma>(p, launch, unit, column0, has_statistics, rO, rows[0]);
  store_result<1, Mma>(p, launch, unit, column0, has_statistics, rO, rows[1]);
}

}  // namespace tilewright::cuda::dsv4
