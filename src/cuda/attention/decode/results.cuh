// What becomes of a part's O, m and l, of which each warp, or warpgroup, has its own from its keys.
// They leave theirs in SMEM, where the part's last key tiles were, and merge them. In a cluster,
// each block has a slice of the columns, which the others send it. A worker that computes a whole
// item stores the results. Of other items, one merges the parts that others leave in the workspace.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
#pragma once

#include <algorithm>

#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/decode/slots.cuh"
#include "cuda/common/cluster.cuh"

namespace tilewright::cuda {
namespace decode {

template <typename Config>
__device__ void sync_consumer() {
  constexpr std::uint32_t kBarrier = 1;
  cutlass::arch::NamedBarrier::sync(Config::kConsumerThreads, kBarrier);
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

// ---- Pieces

// Where the pieces lie in SMEM that become one, each a step behind the one before.
struct PieceSource {
  const float2* statistics;  // m and l
  const float4* o;
  int step;    // of statistics
  int o_step;  // in quads

  template <int kQuads>
  __device__ Piece<kQuads> at(int i) const {
    static_assert(kQuads == 1);
    const float2 of_row = statistics[i * step];
    return {.m = of_row.x, .l = of_row.y, .o = {o[i * o_step]}};
  }
};

// a x + b y
__device__ __forceinline__ float4 weighted_sum(float a, const float4& x, float b, const float4& y) {
  return {fmaf(b, y.x, a * x.x), fmaf(b, y.y, a * x.y), fmaf(b, y.z, a * x.z),
          fmaf(b, y.w, a * x.w)};
}

// Merges two pieces.
template <int kQuads>
__device__ __forceinline__ Piece<kQuads> merge_two(const Piece<kQuads>& a, const Piece<kQuads>& b) {
  const float m = fmaxf(a.m, b.m);
  const float reference = m == kMinusInf ? 0.0f : m;
  const float weight_a = exp2_approx((a.m - reference) * kLog2e);
  const float weight_b = exp2_approx((b.m - reference) * kLog2e);
  Piece<kQuads> merged{.m = m, .l = fmaf(weight_b, b.l, weight_a * a.l)};
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    merged.o[j] = weighted_sum(weight_a, a.o[j], weight_b, b.o[j]);
  }
  return merged;
}

// Merges `count` pieces of a batch-invariant item one after the other. Splits are merged to bundles
// first.
template <int kQuads, typename Source>
__device__ __forceinline__ Piece<kQuads> merge_in_turn(int count, bool are_splits,
                                                       const Source& source) {
  Piece<kQuads> merged;
  int first = 0;
#pragma unroll 1
  do {
    Piece<kQuads> pieces[kBundle];
#pragma unroll
    for (int i = 0; i < kBundle; ++i) {
      if (first + i < count) {
        pieces[i] = source.template at<kQuads>(first + i);
      }
    }
    Piece<kQuads> sum = are_splits ? Piece<kQuads>{} : merged;
#pragma unroll
    for (const auto& piece : pieces) {
      sum = merge_two(sum, piece);
    }
    merged = are_splits ? merge_two(merged, sum) : sum;
    first += kBundle;
  } while (first < count);
  return merged;
}

// Merges `count` pieces in their order. The loads of kAhead are under way together. The loop runs
// once even if there are no pieces, for the sake of a rehearsal.
template <int kQuads, int kAhead, typename Source>
__device__ __forceinline__ Piece<kQuads> merge_pieces(int count, const Source& source) {
  Piece<kQuads> merged;
  int first = 0;
#pragma unroll 1
  do {
    Piece<kQuads> pieces[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < count) {
        pieces[i] = source.template at<kQuads>(first + i);
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
#pragma unroll
    for (float4& o : merged.o) {
      o = {o.x * rescale, o.y * rescale, o.z * rescale, o.w * rescale};
    }
#pragma unroll
    for (const auto& piece : pieces) {
      const float weight = exp2_approx((piece.m - reference) * kLog2e);
      merged.l = fmaf(weight, piece.l, merged.l);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4& o = piece.o[j];
        float4& sum = merged.o[j];
        sum = {fmaf(weight, o.x, sum.x), fmaf(weight, o.y, sum.y), fmaf(weight, o.z, sum.z),
               fmaf(weight, o.w, sum.w)};
      }
    }
    first += kAhead;
  } while (first < count);
  return merged;
}

// ---- Where merged pieces go

// Where a piece of the caller's results goes. It is found while the block waits for the piece.
struct ResultPlace {
  Row row;
  int column;
  void* o;
  float* lse;  // null: this piece has none to store
  float sink;  // where there are sinks
};

template <typename Element>
__device__ __forceinline__ ResultPlace result_place(const Params& p, const Part& part,
                                                    const Row& row, int column) {
  ResultPlace place{.row = row, .column = column};
  place.o =
      p.statistics.max == nullptr
          ? static_cast<void*>(
                row_pointer<Element>(p.o, p.o_stride, part.sequence, row.token, row.head) + column)
          : row_pointer<float>(p.o, p.o_stride, part.sequence, row.token, row.head) + column;
  if (column == 0 && p.lse != nullptr) {
    place.lse = row_pointer<float>(p.lse, p.lse_stride, part.sequence, row.token, row.head);
  }
  if (p.sinks.logits != nullptr) {
    place.sink = p.sinks.logits[row.head * p.sinks.stride];
  }
  asm volatile("" : "+l"(place.o), "+l"(place.lse), "+f"(place.sink));  // now, not when needed
  return place;
}

// Stores a merged piece as a part of the caller's results. Its quads are `apart` columns apart.
template <typename Element, int kQuads>
__device__ __forceinline__ void store_final(const Params& p, const Part& part,
                                            const ResultPlace& place, int apart,
                                            const Piece<kQuads>& piece) {
  const bool is_normalized = p.statistics.max == nullptr;
  const RowResult seen{.m = piece.m, .l = piece.l, .rescale = 1.0f};
  const RowResult result[1] = {p.sinks.logits != nullptr ? with_sink(seen, place.sink) : seen};
  float factor[1];
  output_factors(result, is_normalized, factor);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const float4& sum = piece.o[j];
    const float4 o{sum.x * factor[0], sum.y * factor[0], sum.z * factor[0], sum.w * factor[0]};
    if (is_normalized) {
      static_cast<uint2*>(place.o)[j * apart / 4] = {pack_x2<Element>(o.x, o.y),
                                                     pack_x2<Element>(o.z, o.w)};
    } else {
      static_cast<float4*>(place.o)[j * apart / 4] = o;
    }
  }
  if (is_normalized && place.lse != nullptr) {
    *place.lse = log_sum_exp(result[0].m, result[0].l, 1.0f);
  }
  if (!is_normalized && place.column == 0) {
    store_statistics(p, part.sequence, place.row.token, place.row.head, result[0]);
  }
}

// ---- A part's results

// Says to all blocks of the cluster that this one has read what they sent in the last exchange. The
// consumer calls it ahead of each exchange but the first.
template <typename Config>
__device__ void allow_exchange(SharedStorage<Config>& shared, const Launch& launch) {
  if constexpr (Config::kMayCluster) {
    sync_consumer<Config>();
    arrive_in_all(shared.exchange.read, launch.workers.cluster());
  }
}

// Merging goes from level to level: the warps of a block, or its warpgroups; then the blocks of a
// cluster. What comes of the last level is merged with the item's other parts.
enum class Level { warps, blocks };

// `BlockPieces` is what a block's warps or warpgroups leave in SMEM, in passes:
//   int rows_of(int rows, int pass)        that a pass merges, of the part's
//   int tile_row(int i, int pass)          row i of them, of the row tile
//   void leave(int pass)                   the consumer's threads call it together
//   int count()                            the pieces that become one, at most kMost
//   source(int i, int q)                   those of row i of the pass, from quad q on: what has an
//                                          at() as PieceSource has
template <typename Config, typename BlockPieces>
class Finish {
 public:
  __device__ Finish(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                    const Part& part, const BlockPieces& block)
      : shared_(shared), p_(p), launch_(launch), part_(part), block_(block) {}

  // `exchanges` counts the passes in a cluster.
  __device__ void run(std::uint32_t& exchanges) {
    const int rows = part_.tokens * launch_.shape.tile_heads;
    const int passes = Config::kPasses > 1 && rows > 8 ? Config::kPasses : 1;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      pass_ = pass;
      rows_ = block_.rows_of(rows, pass);
      if (pass > 0 && is_cluster()) {
        allow_exchange<Config>(shared_, launch_);
      }
      merge<Level::warps>(exchanges);
      if (is_cluster()) {
        merge<Level::blocks>(exchanges);
      }
    }
  }

 private:
  static constexpr int kRowQuads = Config::C.value_dim / 4;
  // The quads of a piece: so many that a thread merges one piece of the tile, or two. For four,
  // batch-invariant kernels have too few registers.
  static constexpr int kMostQuads = Config::kIsInvariant ? 2 : kRowQuads / 8;
  static constexpr int kThreadQuads =
      Config::C.swaps ? std::clamp(Config::kPassRows * kRowQuads / 256, 1, kMostQuads) : 1;
  static constexpr bool kCarriesInSmem =
      Config::kIsInvariant && Config::C.swaps && Config::kMayCluster;
  static_assert(!kCarriesInSmem || (Config::kPasses == 1 && 32 % kRowQuads == 0));

  __device__ bool is_cluster() const {
    return Config::kMayCluster && launch_.workers.cluster_log2 > 0;
  }

  // Waits until what a level merges is there.
  template <Level kLevel>
  __device__ __forceinline__ void wait(std::uint32_t& exchanges) {
    if constexpr (kLevel == Level::warps) {
      block_.leave(pass_);
      if (is_cluster()) {
        begin_exchange(exchanges);
      }
    } else if constexpr (Config::kMayCluster) {
      shared_.exchange.written.wait(exchanges++ & 1);
    }
  }

  // What was sent in the exchange before has been read by all.
  __device__ void begin_exchange(std::uint32_t number) {
    if constexpr (Config::kMayCluster) {
      auto& exchange = shared_.exchange;
      if (number > 0) {
        exchange.read.wait((number - 1) & 1);
      }
      if (threadIdx.x == 0) {
        exchange.written.arrive_and_expect_tx(
            rows_ * (kRowQuads * sizeof(float4) + launch_.workers.cluster() * sizeof(float2)));
      }
    }
  }

  // Merges the pieces of each row, spread over the consumer's threads: all columns of the block's
  // or, of a cluster's, the block's slice of the columns.
  template <Level kLevel>
  __device__ __forceinline__ void merge(std::uint32_t& exchanges) {
    constexpr bool kIsWhole = kLevel == Level::warps;
    constexpr int kQuads = kIsWhole ? kThreadQuads : 1;
    // Of blocks four at a time: instruction caches would not keep the code of more.
    constexpr int kAhead = kIsWhole ? BlockPieces::kMost : 4;
    const int slices_log2 = is_cluster() ? launch_.workers.cluster_log2 : 0;
    const int slice = kRowQuads >> slices_log2;
    const int rank = is_cluster() ? rank_in(launch_) : 0;
    const int row_pieces = kIsWhole ? kRowQuads / kQuads : slice;
    const bool is_last_level = !(kIsWhole && is_cluster());
    const bool is_last_split = !Config::kIsInvariant || part_.split + 1 == part_.splits;
    const bool is_final = is_last_level && is_last_split && part_.place.merges;
    if constexpr (kIsWhole) {  // until O has been left there are no registers for a place
      wait<kLevel>(exchanges);
    }
    bool is_there = kIsWhole;
    const int count = rows_ * row_pieces;
    const int first = static_cast<int>(threadIdx.x) & ~31;  // of the warp
#pragma unroll 1
    for (int of_warp = first; Config::kIsFull || of_warp == first || of_warp < count;
         of_warp += Config::kConsumerThreads) {
      const int i = of_warp + static_cast<int>(threadIdx.x) % 32;
      const bool exists = i < count;
      const int index = kIsWhole ? i / (kRowQuads / kQuads) : (i << slices_log2) / kRowQuads;
      const int in_row = i - index * row_pieces;
      const int q = kIsWhole ? in_row : rank * slice + in_row;
      const int tile_row = block_.tile_row(index, pass_);
      Row row{};
      if (is_last_level || Config::kIsFull) {
        row = row_of(part_, launch_.shape, tile_row);
      }
      const bool is_stored = exists && row.exists;
      ResultPlace place;
      if (is_final && is_stored) {
        place = result_place<typename Config::Element>(p_, part_, row, 4 * q);
      }
      if (!is_there) {
        wait<kLevel>(exchanges);
        is_there = true;
      }
      if (of_warp >= count) {
        break;
      }
      Piece<kQuads> merged;
      if (exists) {
        if constexpr (kIsWhole) {
          merged = merge_pieces<kQuads, kAhead>(block_.count(), block_.source(index, in_row));
        } else {
          const PieceSource blocks = of_blocks(index, in_row, slice);
          merged = Config::kIsInvariant ? merge_in_turn<kQuads>(1 << slices_log2, true, blocks)
                                        : merge_pieces<kQuads, kAhead>(1 << slices_log2, blocks);
        }
        if (!is_last_level) {
          send_piece(merged, index, in_row, slices_log2, rank);
        }
      }
      if (is_last_level && (part_.place.parts != 1 || (Config::kIsInvariant && part_.splits > 1))) {
        const PartSlots<Config> slots = slots_of(rank);
        const int quad = tile_row * kRowQuads + q;
        if (Config::kIsInvariant && kIsWhole && part_.splits > 1) {
          merged = with_splits_before(merged, slots, quad, is_stored);
        }
        if (kCarriesInSmem && !is_last_split) {
          if (is_stored) {
            carry(quad, merged);
          }
        } else if (part_.place.merges && is_last_split) {
          if (of_warp == first) {
            slots.wait();
          }
          merged = with_other_parts(merged, slots, quad, is_stored ? part_.place.parts : 0);
        } else if (is_stored) {
          slots.leave(quad, merged);
        }
      }
      if (is_final && is_stored) {
        store_final<typename Config::Element>(p_, part_, place, 4 * kRowQuads / kQuads, merged);
      }
    }
    if (is_last_level && is_last_split && part_.place.is_awaited && first < count) {
      slots_of(rank).announce();
    }
  }

  __device__ PartSlots<Config> slots_of(int rank) const {
    return {launch_, part_.place, rank, pass_};
  }

  // Merges a piece with those of the bundle's splits before, which have been carried here, or wait
  // in the part's slot.
  template <int kQuads>
  __device__ __forceinline__ Piece<kQuads> with_splits_before(const Piece<kQuads>& own,
                                                              const PartSlots<Config>& slots,
                                                              int quad, bool is_stored) const {
    Piece<kQuads> merged = own;
    if (part_.split > 0 && is_stored) {
      if constexpr (kCarriesInSmem) {
        merged = merge_two(carried<kQuads>(quad), own);
      } else {
        merged = merge_two(slots.template at<kQuads>(part_.place.index, quad), own);
      }
    }
    __syncwarp();  // all lanes have read m and l, which one of them leaves
    return merged;
  }

  // Carries a bundle's splits so far to its next one, in SMEM that only clusters use otherwise,
  // whose blocks have a split each. A thread has the same pieces of all splits, and a warp whole
  // rows.
  template <int kQuads>
  __device__ __forceinline__ void carry(int quad, const Piece<kQuads>& value) {
    if constexpr (kCarriesInSmem) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        shared_.exchange.o[quad + j * (kRowQuads / kQuads)] = value.o[j];
      }
      if (quad % kRowQuads == 0) {
        shared_.exchange.statistics[0][quad / kRowQuads] = {value.m, value.l};
      }
    }
  }
  template <int kQuads>
  __device__ __forceinline__ Piece<kQuads> carried(int quad) const {
    const float2 of_row = shared_.exchange.statistics[0][quad / kRowQuads];
    Piece<kQuads> piece{.m = of_row.x, .l = of_row.y};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      piece.o[j] = shared_.exchange.o[quad + j * (kRowQuads / kQuads)];
    }
    return piece;
  }

  // The pieces of all of an item's parts, of which this block has its own.
  template <int kOwnQuads>
  struct PartSource {
    const PartSlots<Config>& slots;
    const Piece<kOwnQuads>& own;
    int own_part;
    int quad;

    template <int kQuads>
    __device__ Piece<kQuads> at(int part) const {
      return part == own_part ? own : slots.template at<kQuads>(part, quad);
    }
  };

  // Merges a piece with those of all `parts` of the item, in their order.
  template <int kQuads>
  __device__ __forceinline__ Piece<kQuads> with_other_parts(const Piece<kQuads>& own,
                                                            const PartSlots<Config>& slots,
                                                            int quad, int parts) const {
    // As many as there are registers for.
    constexpr int kAhead = !Config::C.swaps ? 4 : kQuads == 1 ? 6 : kQuads == 2 ? 4 : 3;
    const PartSource<kQuads> source{slots, own, part_.place.index, quad};
    return Config::kIsInvariant ? merge_in_turn<kQuads>(parts, part_.place.is_split, source)
                                : merge_pieces<kQuads, kAhead>(parts, source);
  }

  __device__ PieceSource of_blocks(int row, int q, int slice) const {
    if constexpr (Config::kMayCluster) {
      const auto& exchange = shared_.exchange;
      return {&exchange.statistics[0][row], &exchange.o[row * slice + q], Config::kPassRows,
              rows_ * slice};
    }
    return {};
  }

  // Sends each quad of a piece to the block with its slice. The first one is quad q of the row.
  template <int kQuads>
  __device__ void send_piece(const Piece<kQuads>& piece, int row, int q, int slices_log2,
                             int rank) {
    if constexpr (Config::kMayCluster) {
      auto& exchange = shared_.exchange;
      const int slice = kRowQuads >> slices_log2;
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const int quad = q + j * (kRowQuads / kQuads);
        const int owner = (quad << slices_log2) / kRowQuads;
        const int in_slice = quad - owner * slice;
        const RemoteBarrier written(exchange.written, owner);
        send(&exchange.o[(rank * rows_ + row) * slice + in_slice], owner, piece.o[j], written);
        if (in_slice == 0) {
          send(&exchange.statistics[rank][row], owner, float2{piece.m, piece.l}, written);
        }
      }
    }
  }

  SharedStorage<Config>& shared_;
  const Params& p_;
  const Launch& launch_;
  const Part& part_;
  const BlockPieces block_;
  int pass_ = 0;
  int rows_ = 0;  // that are merged at once
};

}  // namespace decode
}  // namespace tilewright::cuda
