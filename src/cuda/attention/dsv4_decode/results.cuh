// What becomes of O: results of pairs and of parts are left to be merged, or the sink is counted, O
// is normalised, its last dims are rotated back, and it is stored.
#pragma once

#include <cuda_fp8.h>

#include "common/kv_row.hpp"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/attention/dsv4_decode/job.cuh"
#include "cuda/attention/dsv4_decode/softmax.cuh"

namespace tilewright::cuda::dsv4 {

// ---- Partial results in the workspace

// Some columns of O in a warpgroup's registers.
template <int kColumns>
struct Output {
  using Mma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::_64, cute::Int<kColumns>, cute::_64>,
                                 cute::GMMA::Major::K, cute::GMMA::Major::MN>()));
  using Fragment =
      decltype(cute::partition_fragment_C(Mma{}, cute::Shape<cute::_64, cute::Int<kColumns>>{}));
};

// A consumer has two output blocks in registers, of columns that share a scale if O is E4M3.
inline constexpr int kOutputColumns = 128;
using FragmentO = Output<kOutputColumns>::Fragment;
using FragmentPv = decltype(cute::partition_fragment_C(MmaPv{}, BlockShape{}));

// Half `half` of an output block's registers, 64 columns.
__device__ __forceinline__ auto half_of(FragmentO& tOrO, int half) {
  return cute::make_tensor(tOrO.data() + half * cute::size(FragmentPv{}),
                           typename FragmentPv::layout_type{});
}

// Are some of the 16 rows of an item that the thread's warp has among those that items may have?
__device__ inline bool warp_has_rows(const Launch& launch) {
  return this_thread() % kWarpgroupThreads / 32 * 16 < rows_of(launch.shape);
}

// A thread's share of columns [column0, ...) of a slot: pieces of four registers, beside those of
// the warpgroup's other threads.
__device__ inline float4* pieces_of(const Launch& launch, int slot, int column0) {
  return launch.o + std::int64_t{slot} * (kRows * kDims / 4) + column0 * (kRows / 4) +
         this_thread() % kWarpgroupThreads;
}

template <typename Tensor>
__device__ __forceinline__ void leave(const Launch& launch, int slot, int column0,
                                      const Tensor& tensor) {
  float4* const pieces = pieces_of(launch, slot, column0);
#pragma unroll
  for (int i = 0; i < cute::size(tensor) / 4; ++i) {
    __stcg(pieces + i * kWarpgroupThreads,
           float4{tensor(4 * i), tensor(4 * i + 1), tensor(4 * i + 2), tensor(4 * i + 3)});
  }
}

__device__ inline void leave_statistics(const Launch& launch, int slot,
                                        const RowSoFar (&rows)[kThreadRows]) {
  if (this_thread() % 4 == 0) {
    float4* const first = launch.statistics + (std::int64_t{slot} * kRows + row_of_thread(0));
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {  // a thread's rows are eight apart
      __stcg(first + 8 * i,
             float4{rows[i].reference, rows[i].max, rows[i].sum, rows[i].rounded_sum});
    }
  }
}

template <typename Tensor>
__device__ __forceinline__ void take(const Launch& launch, int slot, int column0, Tensor& tensor) {
  const float4* const pieces = pieces_of(launch, slot, column0);
#pragma unroll
  for (int i = 0; i < cute::size(tensor) / 4; ++i) {
    const float4 piece = __ldcg(pieces + i * kWarpgroupThreads);
    tensor(4 * i) = piece.x;
    tensor(4 * i + 1) = piece.y;
    tensor(4 * i + 2) = piece.z;
    tensor(4 * i + 3) = piece.w;
  }
}

__device__ __forceinline__ void take_statistics(const Launch& launch, int slot,
                                                RowSoFar (&rows)[kThreadRows]) {
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const float4 row = __ldcg(&launch.statistics[std::int64_t{slot} * kRows + row_of_thread(i)]);
    rows[i] = {row.x, row.y, row.z, row.w};
  }
}

// Appends the results in `count` slots behind each other to columns of O. kSlots slots are loaded
// at once.
template <int kColumns, int kSlots>
__device__ __forceinline__ void append_slots(const Launch& launch, int first, int count,
                                             int column0, typename Output<kColumns>::Fragment& tOrO,
                                             RowSoFar (&rows)[kThreadRows]) {
  using Mma = typename Output<kColumns>::Mma;
#pragma unroll 1
  for (int i = 0; i < count; i += kSlots) {
    typename Output<kColumns>::Fragment its[kSlots];
    RowSoFar its_rows[kSlots][kThreadRows];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (i + k < count) {
        const int slot = first + i + k;
        take(launch, slot, column0, its[k]);
        take_statistics(launch, slot, its_rows[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (i + k < count) {
        const Appended row0(rows[0], its_rows[k][0]);
        const Appended row1(rows[1], its_rows[k][1]);
        if (some_change(row0.before, row1.before)) {
          change<Mma>(row0.before, row1.before, tOrO);
        }
        add<Mma>(row0.behind, row1.behind, tOrO, its[k]);
        rows[0] = row0.row;
        rows[1] = row1.row;
      }
    }
  }
}

// ---- The caller's results

// The angles by which a position's output is rotated back.
struct RotationBack {
  const float* cos;
  const float* sin;

  __device__ RotationBack(const InverseRope& rope, std::int64_t position) {
    const bool is_known = position >= 0 && position < rope.max_positions;
    cos = rope.cos + (is_known ? position : 0) * rope.cos_stride;
    sin = rope.sin + (is_known ? position : 0) * rope.sin_stride;
  }
};

// Turns two neighbouring dims back by an angle.
__device__ __forceinline__ void turn_back(float cos, float sin, float& x, float& y) {
  const float before = x;
  x = fmaf(before, cos, y * sin);
  y = fmaf(y, cos, -(before * sin));
}

// Rotates the pairs of neighbouring columns in the last dims of row kRow of O back by the
// position's angles. rO has kColumns columns from column0 on, among them some of those dims.
template <int kColumns, int kRow, typename TensorO>
__device__ __forceinline__ void rotate_back(const InverseRope& rope, std::int64_t position,
                                            int column0, TensorO& rO) {
  constexpr int kFirst = kDims - kKvRowRotaryDims;
  constexpr int kOthers = kColumns > kKvRowRotaryDims ? kColumns - kKvRowRotaryDims : 0;
  const RotationBack back(rope, position);
  const int pair0 = (column0 - kFirst) / 2 + threadIdx.x % 4;
  const float* const cos = back.cos + pair0;
  const float* const sin = back.sin + pair0;
#pragma unroll
  for (int j = kOthers / 4; j < cute::size<1>(rO); j += 2) {
    turn_back(__ldg(cos + 2 * j), __ldg(sin + 2 * j), rO(kRow, j), rO(kRow, j + 1));
  }
}

// Stores kCount neighbouring columns, two or eight, of a row that exists.
template <int kCount>
__device__ __forceinline__ void store_vector(const Params& p, const Unit& unit, const Row& row,
                                             int column, float (&values)[kCount]) {
  constexpr int kFirst = kDims - kKvRowRotaryDims;
  if (column >= kFirst && p.rope.cos != nullptr) {
    const RotationBack back(p.rope,
                            p.rope.positions[at(p.rope.positions_stride, unit.request, row.token)]);
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      const int pair = (column + j - kFirst) / 2;
      turn_back(__ldg(back.cos + pair), __ldg(back.sin + pair), values[j], values[j + 1]);
    }
  }
  if (p.statistics.max == nullptr) {
    cute::array_aligned<std::uint32_t, kCount / 2> words;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) {
      words[j] = pack_x2<Element>(values[2 * j], values[2 * j + 1]);
    }
    using Words = cute::uint_bit_t<kCount * 16>;
    *reinterpret_cast<Words*>(
        row_pointer<Element>(p.o, p.o_stride, unit.request, row.token, row.head) + column) =
        *reinterpret_cast<const Words*>(words.data());
  } else {
    float* const out = row_pointer<float>(p.o, p.o_stride, unit.request, row.token, row.head);
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      *reinterpret_cast<float2*>(out + column + j) = float2{values[j], values[j + 1]};
    }
  }
}

// Stores row kRow of O as E4M3: an output block's columns have one scale.
template <int kRow, typename TensorO>
__device__ __forceinline__ void store_e4m3(const Params& p, const Unit& unit, const Row& row,
                                           int column0, const TensorO& rO) {
  auto* const out = row_pointer<std::uint8_t>(p.o, p.o_stride, unit.request, row.token, row.head);
  float* const scales =
      row_pointer<float>(p.o_scale, p.o_scale_stride, unit.request, row.token, row.head);
  float amax = 0.0f;
  bool has_nan = false;
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); ++j) {
    amax = fmaxf(amax, fabsf(rO(kRow, j)));
    has_nan |= isnan(rO(kRow, j));
  }
  amax = row_max<Output<kOutputColumns>::Mma>(has_nan ? __int_as_float(0x7f800000) : amax);
  const std::uint32_t byte = e8m0_scale_of(amax);
  const float inverse = inverse_of_e8m0_scale(byte);
  if (row.exists && threadIdx.x % 4 == 0) {
    scales[column0 / kOutputColumns * p.o_scale_group_stride] = e8m0_to_float(byte);
  }
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); j += 2) {
    const float2 pair{rO(kRow, j) * inverse, rO(kRow, j + 1) * inverse};
    const auto bytes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    if (row.exists) {
      *reinterpret_cast<std::uint16_t*>(out + column0 + 4 * j + 2 * (threadIdx.x % 4)) = bytes;
    }
  }
}

// What becomes of the row of an item that has number `index`. Its statistics are under the row's
// maximum if the caller asks for that, else under its reference.
struct RowEnd {
  Row row;
  RowResult keys;    // without the sink
  RowResult result;  // with it
  float factor;      // of O, whose own sum is that of the rounded P

  __device__ RowEnd(const Params& p, const Launch& launch, const Unit& unit, const float* sinks,
                    const RowSoFar& so_far, int index)
      : row(row_of(unit, launch.shape, index)) {
    constexpr float kLn2 = 1.0f / kLog2e;
    const bool is_normalized = p.statistics.max == nullptr;
    const float own = __fdividef(so_far.sum, so_far.rounded_sum);
    keys = {
        .m = so_far.reference * kLn2, .l = so_far.sum, .rescale = so_far.sum == 0.0f ? 1.0f : own};
    if (!is_normalized) {
      keys = under_maximum(keys, so_far.max * kLn2);
    }
    const bool has_sink = p.sinks.logits != nullptr && row.exists;
    result = has_sink ? with_sink(keys, sinks[index]) : keys;
    const RowResult results[1] = {result};
    float factors[1];
    output_factors(results, is_normalized, factors);
    factor = factors[0];
  }
};

// Stores columns of row kRow of O, in FP32 or BF16. Where they are few, lanes store what they have.
template <int kColumns, int kRow, typename T, typename TensorO>
__device__ __forceinline__ void store_values(T* out, const TensorO& rO, bool exists) {
  if constexpr (kColumns % 32 == 0) {
    store_row<typename Output<kColumns>::Mma>(out, rO, kRow, exists);
  } else if (exists) {
#pragma unroll
    for (int j = 0; j < cute::size<1>(rO); j += 2) {
      T* const pair = out + 4 * j + 2 * (threadIdx.x % 4);
      if constexpr (cute::is_same_v<T, float>) {
        *reinterpret_cast<float2*>(pair) = float2{rO(kRow, j), rO(kRow, j + 1)};
      } else {
        *reinterpret_cast<std::uint32_t*>(pair) = pack_x2<T>(rO(kRow, j), rO(kRow, j + 1));
      }
    }
  }
}

// Stores kColumns columns of row kRow of this thread, which is `row`, times a factor.
template <int kColumns, int kRow, typename TensorO>
__device__ __forceinline__ void store_columns(const Params& p, const Unit& unit, int column0,
                                              TensorO& rO, const Row& row, float factor) {
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); ++j) {
    rO(kRow, j) *= factor;
  }
  if (column0 + kColumns > kDims - kKvRowRotaryDims && p.rope.cos != nullptr && row.exists) {
    rotate_back<kColumns, kRow>(
        p.rope, p.rope.positions[at(p.rope.positions_stride, unit.request, row.token)], column0,
        rO);
  }
  if (kColumns == kOutputColumns && p.o_scale != nullptr) {
    store_e4m3<kRow>(p, unit, row, column0, rO);
  } else if (p.statistics.max == nullptr) {
    store_values<kColumns, kRow>(
        row_pointer<Element>(p.o, p.o_stride, unit.request, row.token, row.head) + column0, rO,
        row.exists);
  } else {
    store_values<kColumns, kRow>(
        row_pointer<float>(p.o, p.o_stride, unit.request, row.token, row.head) + column0, rO,
        row.exists);
  }
}

// Stores the statistics of a row that exists.
__device__ __forceinline__ void store_statistics(const Params& p, const Unit& unit,
                                                 const RowEnd& end) {
  const Row& row = end.row;
  cuda::store_statistics(p, unit.request, row.token, row.head, end.result);
  if (p.lse != nullptr && !p.lse_counts_sink) {
    *row_pointer<float>(p.lse, p.lse_stride, unit.request, row.token, row.head) =
        end.keys.l == 0.0f ? kMinusInf : end.keys.m + logf(end.keys.l);
  }
}

// Stores row kRow of this thread: columns of O, and the row's statistics beside the first ones.
template <int kColumns, int kRow, typename TensorO>
__device__ __forceinline__ void store_result(const Params& p, const Unit& unit, int column0,
                                             TensorO& rO, const RowEnd& end) {
  store_columns<kColumns, kRow>(p, unit, column0, rO, end.row, end.factor);
  if (column0 == 0 && end.row.exists && threadIdx.x % 4 == 0) {
    store_statistics(p, unit, end);
  }
}

template <int kColumns>
__device__ __forceinline__ void store_results(const Params& p, const Launch& launch,
                                              const Unit& unit, const float* sinks, int column0,
                                              typename Output<kColumns>::Fragment& tOrO,
                                              const RowSoFar (&rows)[kThreadRows]) {
  static_assert(kThreadRows == 2);
  const RowEnd row0(p, launch, unit, sinks, rows[0], row_of_thread(0));
  const RowEnd row1(p, launch, unit, sinks, rows[1], row_of_thread(1));
  auto rO = by_rows<typename Output<kColumns>::Mma>(tOrO);
  store_result<kColumns, 0>(p, unit, column0, rO, row0);
  store_result<kColumns, 1>(p, unit, column0, rO, row1);
}

}  // namespace tilewright::cuda::dsv4
