// Merges the splits of an attention: each has un-normalised O, m and l over its own keys.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
// Tiles     A warp computes a row. A lane has the m and l of a split, and four columns of each 128.
// Limits    At most 32 splits. Each is read once, and they are summed in their order, so that runs
//           are bit-equal.
//
// `Params` are the params of any operation with the members that row_results.cuh names, a batch,
// q_len, heads, value_dim, dtype, and an o with its stride. `Splits` says where they are:
//   count                             of the splits
//   place(split, batch, row, head)    a PartialRow
// `Rows` says which rows of a batch entry are merged. Others are left as they are:
//   lacks(row)                        is this one of the others?
#pragma once

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "tilewright/tensor.hpp"

namespace tilewright::cuda {

// The un-normalised results of a row, in FP32.
struct PartialRow {
  const float* max;
  const float* sum;
  const float* o;
};

// Those of many rows.
struct PartialRows {
  const void* o;
  OuterStrides o_stride;
  RowStatistics statistics;

  __device__ PartialRow at(int batch, int row, int head) const {
    return {
        .max = row_pointer<const float>(statistics.max, statistics.max_stride, batch, row, head),
        .sum = row_pointer<const float>(statistics.sum, statistics.sum_stride, batch, row, head),
        .o = row_pointer<const float>(o, o_stride, batch, row, head)};
  }
};

// The outputs of a call.
template <typename Params>
PartialRows partial_rows(const Params& p) {
  return {.o = p.o, .o_stride = p.o_stride, .statistics = p.statistics};
}

// Split i of batch entry b is at entry i * batches + b.
struct BatchedSplits {
  PartialRows rows;
  int batches;
  int count;

  __device__ PartialRow place(int split, int batch, int row, int head) const {
    return rows.at(split * batches + batch, row, head);
  }
};

// The rows of packed sequences, up to the last one's end, which lies on the device; or all rows.
struct RowsBefore {
  const int* end = nullptr;

  __device__ bool lacks(int row) const { return end != nullptr && row >= *end; }
};

namespace merge_splits {

constexpr int kRowsPerBlock = 4;
constexpr int kFirstSplits = 4;  // whose O is asked for before the weights are known
constexpr int kColumns = 128;    // of O at once
constexpr unsigned kAll = 0xffffffffu;

template <typename Element, typename Params, typename Splits, typename Rows>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    merge(const __grid_constant__ Params p, const __grid_constant__ Splits splits,
          const __grid_constant__ Rows rows) {
  let_next_launch_start();
  wait_for_launch_before();
  const int row_index = static_cast<int>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  if (row_index >= p.batch * p.q_len * p.heads) {
    return;
  }
  const int head = row_index % p.heads;
  const int row = row_index / p.heads % p.q_len;
  const int batch = row_index / p.heads / p.q_len;
  if (rows.lacks(row)) {
    return;
  }
  const int lane = threadIdx.x % 32;
  float m_own = kMinusInf;
  float l_own = 0.0f;
  const float* o_own = nullptr;
  if (lane < splits.count) {
    const PartialRow own = splits.place(lane, batch, row, head);
    m_own = *own.max;
    l_own = *own.sum;
    o_own = own.o;
  }

  // Four columns of O from `column` on. All lanes call it.
  const auto load_o = [&](int split, int column) {
    const auto its_o = reinterpret_cast<const float*>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(o_own), split));
    return split < splits.count && column < p.value_dim
               ? *reinterpret_cast<const float4*>(its_o + column)
               : float4{};
  };
  float4 first_o[kFirstSplits];
#pragma unroll
  for (int split = 0; split < kFirstSplits; ++split) {
    first_o[split] = load_o(split, 4 * lane);
  }

  float m = m_own;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    m = fmaxf(m, __shfl_xor_sync(kAll, m, step));
  }
  const float reference = m == kMinusInf ? 0.0f : m;
  const float weight = exp2_approx((m_own - reference) * kLog2e);
  float l = 0.0f;
  for (int split = 0; split < splits.count; ++split) {
    l = fmaf(__shfl_sync(kAll, weight, split), __shfl_sync(kAll, l_own, split), l);
  }
  const RowResult result = row_result(p, head, m, l);
  if (lane == 0) {
    store_statistics(p, batch, row, head, result);
  }

  const bool is_normalized = p.statistics.max == nullptr;
  const float factor = !is_normalized     ? result.rescale
                       : result.l == 0.0f ? 0.0f
                                          : result.rescale / result.l;
  for (int first = 0; first < p.value_dim; first += kColumns) {
    const int column = first + 4 * lane;
    const bool exists = column < p.value_dim;
    float4 o{};
    const auto add = [&](int split, float4 term) {
      const float its_weight = __shfl_sync(kAll, weight, split);
      o.x = fmaf(its_weight, term.x, o.x);
      o.y = fmaf(its_weight, term.y, o.y);
      o.z = fmaf(its_weight, term.z, o.z);
      o.w = fmaf(its_weight, term.w, o.w);
    };
#pragma unroll
    for (int split = 0; split < kFirstSplits; ++split) {
      add(split, first == 0 ? first_o[split] : load_o(split, column));
    }
#pragma unroll 4
    for (int split = kFirstSplits; split < splits.count; ++split) {
      add(split, load_o(split, column));
    }
    o = {o.x * factor, o.y * factor, o.z * factor, o.w * factor};
    if (exists && is_normalized) {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, batch, row, head) + column;
      *reinterpret_cast<uint2*>(out) = {pack_x2<Element>(o.x, o.y), pack_x2<Element>(o.z, o.w)};
    } else if (exists) {
      auto* const out = row_pointer<float>(p.o, p.o_stride, batch, row, head) + column;
      *reinterpret_cast<float4*>(out) = o;
    }
  }
}

}  // namespace merge_splits

// Queues the merge of `splits` into the outputs of `p`.
template <typename Params, typename Splits, typename Rows = RowsBefore>
void launch_merge(const Params& p, const Splits& splits, Stream stream, const Rows& rows = {},
                  const LaunchOptions& options = {}) {
  const int blocks = ceil_div(p.batch * p.q_len * p.heads, merge_splits::kRowsPerBlock);
  const auto launch = [&](auto element) {
    launch_with<merge_splits::merge<decltype(element), Params, Splits, Rows>>(
        options, blocks, 32 * merge_splits::kRowsPerBlock, 0, stream, p, splits, rows);
  };
  p.dtype == DType::fp16 ? launch(cute::half_t{}) : launch(cute::bfloat16_t{});
}

// The same of `count` splits that are batch entries of `splits`' outputs, as splits_of() has them.
template <typename Params, typename Rows = RowsBefore>
void launch_merge_splits(const Params& p, const Params& splits, int count, Stream stream,
                         const Rows& rows = {}, const LaunchOptions& options = {}) {
  launch_merge(p, BatchedSplits{.rows = partial_rows(splits), .batches = p.batch, .count = count},
               stream, rows, options);
}

}  // namespace tilewright::cuda
