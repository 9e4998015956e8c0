// What becomes of a part's O, m and l: they are the results of a whole item, or a partial result
// that the item's last part to arrive merges with the others.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/attention/decode/config.cuh"
#include "cuda/common/ticket.cuh"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {
namespace decode {

using Params = AttentionWithKvCacheParams;

__device__ inline void sync_consumer() {
  constexpr std::uint32_t kBarrier = 1;
  cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, kBarrier);
}

// A row of a row tile.
struct Row {
  int token;  // of q, counted from the tensor's or the batch entry's first
  int head;
  bool exists;
};

__device__ inline Row row_of(const Part& part, const DecodeShape& shape, int row) {
  const int token = row / shape.tile_heads;
  const int head = row - token * shape.tile_heads;
  return {.token = part.lengths.q_start + part.token0 + token,
          .head = part.first_head + head,
          .exists = token < part.tokens && head < part.heads};
}

__device__ inline RowResult with_sink_of(const Params& p, int head, const RowResult& result) {
  return p.sinks.logits != nullptr ? with_sink(result, p.sinks.logits[head * p.sinks.stride])
                                   : result;
}

// Where a slot's row lies.
struct SlotRow {
  float* o;
  float* max;
  float* sum;
};

template <int kValueDim>
__device__ SlotRow slot_row(const Launch& launch, int slot, int row) {
  const std::int64_t index = std::int64_t{slot} * launch.slot_rows + row;
  return {.o = launch.o + index * kValueDim,
          .max = launch.row_max + index,
          .sum = launch.row_sum + index};
}

// Stores a whole item's results.
template <typename Element, typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void store_whole(const Params& p, const Launch& launch, const Part& part, TensorO& rO,
                            const TensorC& cO, RowResult (&result)[kRows]) {
  const bool is_normalized = p.statistics.max == nullptr;
  Row rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = row_of(part, launch.shape, cute::get<0>(cO(i, 0)));
    if (rows[i].exists) {
      result[i] = with_sink_of(p, rows[i].head, result[i]);
      if (wants_statistics(p) && threadIdx.x % 4 == 0) {
        store_statistics(p, part.sequence, rows[i].token, rows[i].head, result[i]);
      }
    }
  }
  float factor[kRows];
  output_factors(result, is_normalized, factor);
  scale_rows(rO, factor);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const auto [token, head, exists] = rows[i];
    if (is_normalized) {
      store_row<TiledMma>(row_pointer<Element>(p.o, p.o_stride, part.sequence, token, head), rO, i,
                          exists);
    } else {
      store_row<TiledMma>(row_pointer<float>(p.o, p.o_stride, part.sequence, token, head), rO, i,
                          exists);
    }
  }
}

// Stores a part's partial result in its slot.
template <typename TiledMma, int kValueDim, int kRows, typename TensorO, typename TensorC>
__device__ void store_partial(const Launch& launch, const Part& part, const TensorO& rO,
                              const TensorC& cO, const RowResult (&result)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = cute::get<0>(cO(i, 0));
    if (row_of(part, launch.shape, row).exists) {
      const SlotRow out = slot_row<kValueDim>(launch, part.place.slot(part.place.index), row);
      store_row<TiledMma>(out.o, rO, i, true);
      if (threadIdx.x % 4 == 0) {
        *out.max = result[i].m;
        *out.sum = result[i].l;
      }
    }
  }
}

// The partial results of `count` parts, at most 32: every step-th from part `first` on.
struct Sources {
  int first;
  int count;
  int step;

  __device__ int slot(const PartPlace& place, int i) const { return place.slot(first + i * step); }
};

// The merged statistics of a row, and the weight of each source: lane i has that of source i.
struct MergedRow {
  RowResult result;
  float weight;
};

template <int kValueDim>
__device__ MergedRow merge_statistics(const Launch& launch, const PartPlace& place,
                                      const Sources& from, int row) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  float m = kMinusInf;
  float l = 0.0f;
  if (lane < from.count) {
    const SlotRow source = slot_row<kValueDim>(launch, from.slot(place, lane), row);
    m = __ldcg(source.max);
    l = __ldcg(source.sum);
  }
  float m_all = m;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    m_all = fmaxf(m_all, __shfl_xor_sync(kAll, m_all, offset));
  }
  const float reference = m_all == kMinusInf ? 0.0f : m_all;
  const float weight = exp2_approx((m - reference) * kLog2e);
  l *= weight;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    l += __shfl_xor_sync(kAll, l, offset);
  }
  return {.result = {.m = m_all, .l = l, .rescale = 1.0f}, .weight = weight};
}

// Stores four columns of a row's results.
template <typename Element>
__device__ void store_columns(const Params& p, const Part& part, const Row& row, int column,
                              const float4& o) {
  if (p.statistics.max != nullptr) {
    auto* const out = row_pointer<float>(p.o, p.o_stride, part.sequence, row.token, row.head);
    *reinterpret_cast<float4*>(out + column) = o;
  } else {
    auto* const out = row_pointer<Element>(p.o, p.o_stride, part.sequence, row.token, row.head);
    *reinterpret_cast<uint2*>(out + column) =
        uint2{pack_x2<Element>(o.x, o.y), pack_x2<Element>(o.z, o.w)};
  }
}

// A warp merges one row. Sources are added in their order. If `is_final`, the result goes to the
// caller's tensors, else to the first source's slot.
template <typename Element, int kValueDim>
__device__ __forceinline__ void merge_row(const Params& p, const Launch& launch, const Part& part,
                                          const Sources& from, bool is_final, int index) {
  constexpr int kAhead = 16;  // loads of a lane that are under way at once
  const Row row = row_of(part, launch.shape, index);
  if (!row.exists) {
    return;
  }
  MergedRow merged = merge_statistics<kValueDim>(launch, part.place, from, index);
  const int lane = threadIdx.x % 32;
  float factor[1] = {1.0f};
  if (is_final) {
    RowResult result[1] = {with_sink_of(p, row.head, merged.result)};
    output_factors(result, p.statistics.max == nullptr, factor);
    if (lane == 0) {
      store_statistics(p, part.sequence, row.token, row.head, result[0]);
    }
  } else if (lane == 0) {
    const SlotRow out = slot_row<kValueDim>(launch, from.slot(part.place, 0), index);
    *out.max = merged.result.m;
    *out.sum = merged.result.l;
  }
#pragma unroll
  for (int first_column = 0; first_column < kValueDim; first_column += 128) {
    const int column = first_column + 4 * lane;
    const bool is_column = column < kValueDim;
    float4 o{};
    for (int first = 0; first < from.count; first += kAhead) {
      float4 terms[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (is_column && first + i < from.count) {
          const int slot = from.slot(part.place, first + i);
          terms[i] = __ldcg(
              reinterpret_cast<const float4*>(slot_row<kValueDim>(launch, slot, index).o + column));
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float weight = __shfl_sync(0xffffffffu, merged.weight, first + i);
        if (first + i < from.count) {
          o = {fmaf(weight, terms[i].x, o.x), fmaf(weight, terms[i].y, o.y),
               fmaf(weight, terms[i].z, o.z), fmaf(weight, terms[i].w, o.w)};
        }
      }
    }
    if (is_column && is_final) {
      store_columns<Element>(p, part, row, column,
                             {o.x * factor[0], o.y * factor[0], o.z * factor[0], o.w * factor[0]});
    } else if (is_column) {
      float* const out = slot_row<kValueDim>(launch, from.slot(part.place, 0), index).o + column;
      *reinterpret_cast<float4*>(out) = o;
    }
  }
}

// The consumer says that a result is in its slot. Returns whether it was the last of `count`.
template <typename Config>
__device__ bool arrives_last(SharedStorage<Config>& shared, const Launch& launch,
                             std::uint64_t* counter, int count) {
  sync_consumer();  // all threads have stored
  if (threadIdx.x % kWarpgroupThreads == 0) {
    __threadfence();
    const TicketCounter tickets{.word = counter, .epoch = launch.epoch};
    shared.ticket = tickets.take();
    if (shared.ticket == count - 1) {
      tickets.clear();
    }
    __threadfence();
  }
  sync_consumer();
  return shared.ticket == count - 1;
}

// After store_partial(): merges what is complete.
template <typename Config>
__device__ void merge_parts(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                            const Part& part) {
  const PartPlace& place = part.place;
  const int groups = ceil_div(place.parts, kMergeFanIn);
  const int warp = threadIdx.x % kWarpgroupThreads / 32;
  const auto merge = [&](const Sources& from, bool is_final) {
    for (int row = warp; row < launch.slot_rows; row += Config::kConsumerWarps) {
      merge_row<typename Config::Element, Config::C.value_dim>(p, launch, part, from, is_final,
                                                               row);
    }
  };
  if (groups > 1) {
    const int group = place.index / kMergeFanIn;
    const Sources from{.first = group * kMergeFanIn,
                       .count = min(place.parts - group * kMergeFanIn, kMergeFanIn),
                       .step = 1};
    if (!arrives_last(shared, launch, launch.group_counters + place.group_counter(group),
                      from.count)) {
      return;
    }
    merge(from, false);
  }
  const Sources from = groups > 1 ? Sources{.first = 0, .count = groups, .step = kMergeFanIn}
                                  : Sources{.first = 0, .count = place.parts, .step = 1};
  if (arrives_last(shared, launch, launch.item_counters + place.counter, from.count)) {
    merge(from, true);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
