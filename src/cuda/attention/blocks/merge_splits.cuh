// Merges the splits of an attention: each has un-normalised O, m and l over its own keys.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
// Tiles     A warp computes a row; a lane has every 32nd pair of its columns.
// Limits    Each split is read once. Splits are summed in their order, so that runs are bit-equal.
//           Where sequences are packed, rows behind the last one's are left as they are.
//
// `Params` are the params of any operation with the members that row_results.cuh names, a batch,
// q_len, heads, value_dim, dtype, and an o with its stride.
#pragma once

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "tilewright/tensor.hpp"

namespace tilewright::cuda {
namespace merge_splits {

constexpr int kRowsPerBlock = 4;

template <typename Element, typename Params>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    merge(const __grid_constant__ Params p, const __grid_constant__ Params splits, int count,
          const int* rows_end) {
  let_next_launch_start();
  wait_for_launch_before();
  const int row_index = static_cast<int>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  if (row_index >= p.batch * p.q_len * p.heads) {
    return;
  }
  const int head = row_index % p.heads;
  const int row = row_index / p.heads % p.q_len;
  const int batch = row_index / p.heads / p.q_len;
  if (rows_end != nullptr && row >= *rows_end) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const RowStatistics& statistics = splits.statistics;
  const auto split_max = [&](int split) {
    return *row_pointer<const float>(statistics.max, statistics.max_stride, split * p.batch + batch,
                                     row, head);
  };

  float m = kMinusInf;
  for (int split = 0; split < count; ++split) {
    m = fmaxf(m, split_max(split));
  }
  const float reference = m == kMinusInf ? 0.0f : m;
  const auto weight = [&](int split) {
    return exp2_approx((split_max(split) - reference) * kLog2e);
  };
  float l = 0.0f;
  for (int split = 0; split < count; ++split) {
    l += weight(split) * *row_pointer<const float>(statistics.sum, statistics.sum_stride,
                                                   split * p.batch + batch, row, head);
  }
  const RowResult result = row_result(p, head, m, l);
  if (lane == 0) {
    store_statistics(p, batch, row, head, result);
  }

  const bool is_normalized = p.statistics.max == nullptr;
  const float factor = !is_normalized     ? result.rescale
                       : result.l == 0.0f ? 0.0f
                                          : result.rescale / result.l;
  for (int column = 2 * lane; column < p.value_dim; column += 64) {
    float2 o{};
    for (int split = 0; split < count; ++split) {
      const float2 term = *reinterpret_cast<const float2*>(
          row_pointer<const float>(splits.o, splits.o_stride, split * p.batch + batch, row, head) +
          column);
      o.x = fmaf(weight(split), term.x, o.x);
      o.y = fmaf(weight(split), term.y, o.y);
    }
    o = {o.x * factor, o.y * factor};
    if (is_normalized) {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, batch, row, head) + column;
      *reinterpret_cast<std::uint32_t*>(out) = pack_x2<Element>(o.x, o.y);
    } else {
      *reinterpret_cast<float2*>(row_pointer<float>(p.o, p.o_stride, batch, row, head) + column) =
          o;
    }
  }
}

}  // namespace merge_splits

// Queues the merge of `count` splits into the outputs of `p`. `splits` has their un-normalised O, m
// and l: split i of batch entry b is at batch entry i * p.batch + b. If `rows_end` is not null, it
// is where the number of rows that there are lies on the device.
template <typename Params>
void launch_merge_splits(const Params& p, const Params& splits, int count, Stream stream,
                         const int* rows_end = nullptr, const LaunchOptions& options = {}) {
  const int blocks = ceil_div(p.batch * p.q_len * p.heads, merge_splits::kRowsPerBlock);
  constexpr int kThreads = 32 * merge_splits::kRowsPerBlock;
  if (p.dtype == DType::fp16) {
    launch_with<merge_splits::merge<cute::half_t, Params>>(options, blocks, kThreads, 0, stream, p,
                                                           splits, count, rows_end);
  } else {
    launch_with<merge_splits::merge<cute::bfloat16_t, Params>>(options, blocks, kThreads, 0, stream,
                                                               p, splits, count, rows_end);
  }
}

}  // namespace tilewright::cuda
