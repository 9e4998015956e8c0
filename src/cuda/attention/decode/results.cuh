// What becomes of a part's O, m and l, of which each warp, or warpgroup, has its own from its keys.
// They leave theirs in SMEM, where the part's last key tiles were, and merge them. In a cluster,
// each block has a slice of the columns: the others send it theirs, and it goes on with those. A
// worker that computes a whole item stores the results. Of other items, one worker merges the
// parts; the others leave theirs in the workspace for it.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
#pragma once

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
  int o_step;  // in pieces

  __device__ Piece at(int i) const {
    const float2 of_row = statistics[i * step];
    return {.m = of_row.x, .l = of_row.y, .o = o[i * o_step]};
  }
};

// Merges two pieces.
__device__ __forceinline__ Piece merge_two(const Piece& a, const Piece& b) {
  const float m = fmaxf(a.m, b.m);
  const float reference = m == kMinusInf ? 0.0f : m;
  const float weight_a = exp2_approx((a.m - reference) * kLog2e);
  const float weight_b = exp2_approx((b.m - reference) * kLog2e);
  const auto sum = [&](float x, float y) { return fmaf(weight_b, y, weight_a * x); };
  return {.m = m,
          .l = sum(a.l, b.l),
          .o = {sum(a.o.x, b.o.x), sum(a.o.y, b.o.y), sum(a.o.z, b.o.z), sum(a.o.w, b.o.w)}};
}

// Merges `count` pieces of a batch-invariant item one after the other. Splits are merged to bundles
// first.
template <typename Source>
__device__ __forceinline__ Piece merge_in_turn(int count, bool are_splits, const Source& source) {
  Piece merged;
  int first = 0;
#pragma unroll 1
  do {
    Piece pieces[kBundle];
#pragma unroll
    for (int i = 0; i < kBundle; ++i) {
      if (first + i < count) {
        pieces[i] = source.at(first + i);
      }
    }
    Piece sum = are_splits ? Piece{} : merged;
#pragma unroll
    for (const Piece& piece : pieces) {
      sum = merge_two(sum, piece);
    }
    merged = are_splits ? merge_two(merged, sum) : sum;
    first += kBundle;
  } while (first < count);
  return merged;
}

// Merges `count` pieces in their order. The loads of kAhead are under way together. The loop runs
// once even if there are no pieces, for the sake of a rehearsal.
template <int kAhead, typename Source>
__device__ __forceinline__ Piece merge_pieces(int count, const Source& source) {
  Piece merged;
  int first = 0;
#pragma unroll 1
  do {
    Piece pieces[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < count) {
        pieces[i] = source.at(first + i);
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

// Stores a merged piece as a part of the caller's results.
template <typename Element>
__device__ __forceinline__ void store_final(const Params& p, const Part& part,
                                            const ResultPlace& place, const Piece& piece) {
  const bool is_normalized = p.statistics.max == nullptr;
  const RowResult seen{.m = piece.m, .l = piece.l, .rescale = 1.0f};
  const RowResult result[1] = {p.sinks.logits != nullptr ? with_sink(seen, place.sink) : seen};
  float factor[1];
  output_factors(result, is_normalized, factor);
  const float4 o{piece.o.x * factor[0], piece.o.y * factor[0], piece.o.z * factor[0],
                 piece.o.w * factor[0]};
  if (is_normalized) {
    *static_cast<uint2*>(place.o) = uint2{pack_x2<Element>(o.x, o.y), pack_x2<Element>(o.z, o.w)};
    if (place.lse != nullptr) {
      *place.lse = log_sum_exp(result[0].m, result[0].l, 1.0f);
    }
  } else {
    *static_cast<float4*>(place.o) = o;
    if (place.column == 0) {
      store_statistics(p, part.sequence, place.row.token, place.row.head, result[0]);
    }
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
//   source(int i, int q)                   those of row i of the pass, columns from 4 q on: what
//                                          has an at() as PieceSource has
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
  static constexpr int kPieces = Config::C.value_dim / 4;  // of a row
  static constexpr bool kIsWide = Config::C.value_dim > 128;
  static constexpr bool kCarriesInSmem =
      Config::kIsInvariant && Config::C.swaps && Config::kMayCluster;
  static_assert(!kCarriesInSmem || (Config::kPasses == 1 && 32 % kPieces == 0));

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
            rows_ * (kPieces * sizeof(float4) + launch_.workers.cluster() * sizeof(float2)));
      }
    }
  }

  // Merges the pieces of each row, spread over the consumer's threads: all columns of the block's
  // or, of a cluster's, the block's slice of the columns.
  template <Level kLevel>
  __device__ __forceinline__ void merge(std::uint32_t& exchanges) {
    constexpr bool kIsWhole = kLevel == Level::warps;
    // As many at a time as there are registers for.
    constexpr int kMany = kIsWide || (!Config::C.swaps && Config::kIsE4m3) ? 4 : 8;
    constexpr int kAhead = kIsWhole ? BlockPieces::kMost : kMany;
    const int slices_log2 = is_cluster() ? launch_.workers.cluster_log2 : 0;
    const int slice = kPieces >> slices_log2;
    const int rank = is_cluster() ? rank_in(launch_) : 0;
    const int pieces = kIsWhole ? kPieces : slice;
    const bool is_last_level = !(kIsWhole && is_cluster());
    const bool is_last_split = !Config::kIsInvariant || part_.split + 1 == part_.splits;
    const bool is_final = is_last_level && is_last_split && part_.place.merges;
    if constexpr (kIsWhole) {  // until O has been left there are no registers for a place
      wait<kLevel>(exchanges);
    }
    bool is_there = kIsWhole;
    const int count = rows_ * pieces;
    const int first = static_cast<int>(threadIdx.x) & ~31;  // of the warp
#pragma unroll 1
    for (int of_warp = first;; of_warp += Config::kConsumerThreads) {
      const int i = of_warp + static_cast<int>(threadIdx.x) % 32;
      const bool exists = i < count;
      const int index = (kIsWhole ? i : i << slices_log2) / kPieces;
      const int in_row = i - index * pieces;
      const int q = kIsWhole ? in_row : rank * slice + in_row;
      const int tile_row = block_.tile_row(index, pass_);
      const Row row = row_of(part_, launch_.shape, tile_row);
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
      Piece merged;
      if (exists) {
        if constexpr (kIsWhole) {
          merged = merge_pieces<kAhead>(block_.count(), block_.source(index, in_row));
        } else {
          const PieceSource blocks = of_blocks(index, in_row, slice);
          merged = Config::kIsInvariant ? merge_in_turn(1 << slices_log2, true, blocks)
                                        : merge_pieces<kAhead>(1 << slices_log2, blocks);
        }
        if (!is_last_level) {
          send_piece(merged, index, in_row, slices_log2, rank);
        }
      }
      if (is_last_level && (part_.place.parts != 1 || (Config::kIsInvariant && part_.splits > 1))) {
        const PartSlots<Config> slots = slots_of(rank);
        const int piece = tile_row * kPieces + q;
        if (Config::kIsInvariant && kIsWhole && part_.splits > 1) {
          merged = with_splits_before(merged, slots, piece, is_stored);
        }
        if (kCarriesInSmem && !is_last_split) {
          if (is_stored) {
            carry(piece, merged);
          }
        } else if (part_.place.merges && is_last_split) {
          if (of_warp == first) {
            slots.wait();
          }
          merged = with_other_parts(merged, slots, piece, is_stored ? part_.place.parts : 0);
        } else if (is_stored) {
          slots.leave(piece, merged);
        }
      }
      if (is_final && is_stored) {
        store_final<typename Config::Element>(p_, part_, place, merged);
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
  __device__ __forceinline__ Piece with_splits_before(const Piece& own,
                                                      const PartSlots<Config>& slots, int piece,
                                                      bool is_stored) const {
    Piece merged = own;
    if (part_.split > 0 && is_stored) {
      if constexpr (kCarriesInSmem) {
        merged = merge_two(carried(piece), own);
      } else {
        merged = merge_two(slots.at(part_.place.index, piece), own);
      }
    }
    __syncwarp();  // all lanes have read m and l, which one of them leaves
    return merged;
  }

  // Carries a bundle's splits so far to its next one, in SMEM that only clusters use otherwise,
  // whose blocks have a split each. A thread has the same pieces of all splits, and a warp whole
  // rows.
  __device__ __forceinline__ void carry(int piece, const Piece& value) {
    if constexpr (kCarriesInSmem) {
      shared_.exchange.o[piece] = value.o;
      if (piece % kPieces == 0) {
        shared_.exchange.statistics[0][piece / kPieces] = {value.m, value.l};
      }
    }
  }
  __device__ __forceinline__ Piece carried(int piece) const {
    const float2 of_row = shared_.exchange.statistics[0][piece / kPieces];
    return {.m = of_row.x, .l = of_row.y, .o = shared_.exchange.o[piece]};
  }

  // The pieces of all of an item's parts, of which this block has its own.
  struct PartSource {
    const PartSlots<Config>& slots;
    const Piece& own;
    int own_part;
    int piece;

    __device__ Piece at(int part) const { return part == own_part ? own : slots.at(part, piece); }
  };

  // Merges a piece with those of all `parts` of the item, in their order.
  __device__ __forceinline__ Piece with_other_parts(const Piece& own,
                                                    const PartSlots<Config>& slots, int piece,
                                                    int parts) const {
    constexpr int kAhead = Config::C.swaps ? 6 : 4;  // as many as there are registers for
    const PartSource source{slots, own, part_.place.index, piece};
    return Config::kIsInvariant ? merge_in_turn(parts, part_.place.is_split, source)
                                : merge_pieces<kAhead>(parts, source);
  }

  __device__ PieceSource of_blocks(int row, int q, int slice) const {
    if constexpr (Config::kMayCluster) {
      const auto& exchange = shared_.exchange;
      return {&exchange.statistics[0][row], &exchange.o[row * slice + q], Config::kPassRows,
              rows_ * slice};
    }
    return {};
  }

  // To the block that has the slice with this piece.
  __device__ void send_piece(const Piece& piece, int row, int q, int slices_log2, int rank) {
    if constexpr (Config::kMayCluster) {
      auto& exchange = shared_.exchange;
      const int slice = kPieces >> slices_log2;
      const int owner = (q << slices_log2) / kPieces;
      const int in_slice = q - owner * slice;
      const RemoteBarrier written(exchange.written, owner);
      send(&exchange.o[(rank * rows_ + row) * slice + in_slice], owner, piece.o, written);
      if (in_slice == 0) {
        send(&exchange.statistics[rank][row], owner, float2{piece.m, piece.l}, written);
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
