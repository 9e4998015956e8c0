// What becomes of a part's O, m and l. A worker that computes a whole item stores its results. The
// parts of other items leave partial results in the workspace, and the last part to arrive merges
// them. The blocks of a cluster merge theirs first, through each other's SMEM: each block merges a
// slice of O, and it is the slice's results that are stored, or that wait in the workspace.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/attention/decode/cluster.cuh"
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

// Stores a whole item's results from registers.
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

// Stores this thread's rows, as they are, where `place(row)` says.
template <typename TiledMma, int kRows, typename TensorO, typename TensorC, typename Place>
__device__ void store_partial(const Launch& launch, const Part& part, const TensorO& rO,
                              const TensorC& cO, const RowResult (&result)[kRows],
                              const Place& place) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = cute::get<0>(cO(i, 0));
    if (row_of(part, launch.shape, row).exists) {
      const auto [o, max, sum] = place(row);
      store_row<TiledMma>(o, rO, i, true);
      if (threadIdx.x % 4 == 0) {
        *max = result[i].m;
        *sum = result[i].l;
      }
    }
  }
}

// Four columns of a row of O, and the row's m and l.
struct Piece {
  float m = kMinusInf;
  float l = 0.0f;
  float4 o{};
};

// Where a row of a partial result lies.
struct PartialRow {
  float* o;
  float* max;
  float* sum;
};

template <int kValueDim>
__device__ PartialRow slot_row(const Launch& launch, int slot, int row) {
  const std::int64_t index = std::int64_t{slot} * launch.slot_rows + row;
  return {.o = launch.o + index * kValueDim,
          .max = launch.row_max + index,
          .sum = launch.row_sum + index};
}

// Merges the pieces load(0) to load(count - 1) in their order: kAhead at a time, whose loads are
// under way together.
template <int kAhead, typename Load>
__device__ __forceinline__ Piece merge_pieces(int count, const Load& load) {
  Piece merged;
#pragma unroll 1
  for (int first = 0; first < count; first += kAhead) {
    Piece pieces[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < count) {
        pieces[i] = load(first + i);
      }
    }
    float m = merged.m;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      m = fmaxf(m, pieces[i].m);
    }
    const float reference = m == kMinusInf ? 0.0f : m;
    const float rescale = exp2_approx((merged.m - reference) * kLog2e);
    merged.m = m;
    merged.l *= rescale;
    merged.o = {merged.o.x * rescale, merged.o.y * rescale, merged.o.z * rescale,
                merged.o.w * rescale};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Piece& piece = pieces[i];
      const float weight = exp2_approx((piece.m - reference) * kLog2e);
      merged.l = fmaf(weight, piece.l, merged.l);
      merged.o = {fmaf(weight, piece.o.x, merged.o.x), fmaf(weight, piece.o.y, merged.o.y),
                  fmaf(weight, piece.o.z, merged.o.z), fmaf(weight, piece.o.w, merged.o.w)};
    }
  }
  return merged;
}

// Stores a merged piece as a part of the caller's results.
template <typename Element>
__device__ void store_final(const Params& p, const Part& part, const Row& row, int column,
                            const Piece& piece) {
  const bool is_normalized = p.statistics.max == nullptr;
  const RowResult result[1] = {
      with_sink_of(p, row.head, {.m = piece.m, .l = piece.l, .rescale = 1.0f})};
  float factor[1];
  output_factors(result, is_normalized, factor);
  const float4 o{piece.o.x * factor[0], piece.o.y * factor[0], piece.o.z * factor[0],
                 piece.o.w * factor[0]};
  if (is_normalized) {
    auto* const out = row_pointer<Element>(p.o, p.o_stride, part.sequence, row.token, row.head);
    *reinterpret_cast<uint2*>(out + column) =
        uint2{pack_x2<Element>(o.x, o.y), pack_x2<Element>(o.z, o.w)};
  } else {
    auto* const out = row_pointer<float>(p.o, p.o_stride, part.sequence, row.token, row.head);
    *reinterpret_cast<float4*>(out + column) = o;
  }
  if (column == 0) {
    store_statistics(p, part.sequence, row.token, row.head, result[0]);
  }
}

// Calls work(row's number, row, column) for the pieces of the block's slice, spread over the
// consumer's threads. The slices of a cluster's blocks are as large.
template <int kValueDim, typename Work>
__device__ __forceinline__ void for_each_piece(const Launch& launch, const Part& part,
                                               const Work& work) {
  constexpr int kPieces = kValueDim / 4;  // of a row
  const int thread = threadIdx.x % kWarpgroupThreads;
  for (int i = rank_in(launch) * kWarpgroupThreads + thread; i < launch.slot_rows * kPieces;
       i += launch.workers.cluster * kWarpgroupThreads) {
    const int index = i / kPieces;
    const Row row = row_of(part, launch.shape, index);
    if (row.exists) {
      work(index, row, 4 * (i % kPieces));
    }
  }
}

// The consumer says that its slice of a partial result is in the workspace. Returns whether all
// parts' are.
template <typename Config>
__device__ bool arrives_last(SharedStorage<Config>& shared, const Launch& launch,
                             const PartPlace& place) {
  sync_consumer();  // all threads have stored
  if (threadIdx.x % kWarpgroupThreads == 0) {
    __threadfence();
    const TicketCounter tickets{
        .word = launch.counters + place.counter * launch.workers.cluster + rank_in(launch),
        .epoch = launch.epoch};
    shared.ticket = tickets.take();
    if (shared.ticket == place.parts - 1) {
      tickets.clear();
    }
    __threadfence();
  }
  sync_consumer();
  return shared.ticket == place.parts - 1;
}

// Merges the slices of all parts of an item if they are complete.
template <typename Config>
__device__ void merge_parts(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                            const Part& part) {
  constexpr int kValueDim = Config::C.value_dim;
  constexpr int kAhead = kValueDim > 128 ? 8 : 16;
  if (arrives_last(shared, launch, part.place)) {
    for_each_piece<kValueDim>(launch, part, [&](int index, const Row& row, int column) {
      const Piece merged = merge_pieces<kAhead>(part.place.parts, [&](int i) {
        const PartialRow at = slot_row<kValueDim>(launch, part.place.slot(i), index);
        return Piece{.m = __ldcg(at.max),
                     .l = __ldcg(at.sum),
                     .o = __ldcg(reinterpret_cast<const float4*>(at.o + column))};
      });
      store_final<typename Config::Element>(p, part, row, column, merged);
    });
  }
}

// Merges the results of the cluster's blocks, which are in their SMEM.
template <typename Config>
__device__ void merge_blocks(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                             const Part& part) {
  constexpr int kValueDim = Config::C.value_dim;
  constexpr int kAhead = kValueDim > 128 ? 8 : 16;
  using Mine = Exchange<Config>;
  for_each_piece<kValueDim>(launch, part, [&](int index, const Row& row, int column) {
    const Piece merged = merge_pieces<kAhead>(launch.workers.cluster, [&](int rank) {
      const Mine& theirs = *of_block(&shared.exchange, rank);
      return Piece{.m = theirs.max[index],
                   .l = theirs.sum[index],
                   .o = *reinterpret_cast<const float4*>(&theirs.o[index * Mine::kRow + column])};
    });
    if (part.place.parts == 1) {
      store_final<typename Config::Element>(p, part, row, column, merged);
    } else {
      const PartialRow at = slot_row<kValueDim>(launch, part.place.slot(part.place.index), index);
      *reinterpret_cast<float4*>(at.o + column) = merged.o;
      if (column == 0) {
        *at.max = merged.m;
        *at.sum = merged.l;
      }
    }
  });
}

// Finishes a part: `result` and the rows of O are this thread's. `phase` is that of the exchange
// in a cluster, which has two barriers for each part.
template <typename Config, typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void finish_part(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                            const Part& part, TensorO& rO, const TensorC& cO,
                            RowResult (&result)[kRows], std::uint32_t& phase) {
  if constexpr (Config::C.in_clusters) {
    using Mine = Exchange<Config>;
    Mine& mine = shared.exchange;
    mine.read.wait(phase ^ 1);  // before the first part there is nothing to read
    store_partial<TiledMma>(launch, part, rO, cO, result, [&](int row) {
      return PartialRow{
          .o = mine.o + row * Mine::kRow, .max = mine.max + row, .sum = mine.sum + row};
    });
    sync_consumer();
    arrive_in_all(mine.written, launch.workers.cluster);
    wait_for_all(mine.written, phase);
    merge_blocks(shared, p, launch, part);
    sync_consumer();
    arrive_in_all(mine.read, launch.workers.cluster);
    phase ^= 1;
    if (part.place.parts > 1) {
      merge_parts(shared, p, launch, part);
    }
  } else if (part.place.parts == 1) {
    store_whole<typename Config::Element, TiledMma>(p, launch, part, rO, cO, result);
  } else {
    store_partial<TiledMma>(launch, part, rO, cO, result, [&](int row) {
      return slot_row<Config::C.value_dim>(launch, part.place.slot(part.place.index), row);
    });
    merge_parts(shared, p, launch, part);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
