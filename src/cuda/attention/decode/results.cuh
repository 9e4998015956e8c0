// What becomes of a part's O, m and l, of which each warp has its own from its keys. In a pass over
// eight rows of each warp, the warps leave theirs in SMEM, where the part's last key tile was, and
// merge them. A worker that computes a whole item stores the results. The parts of other items
// leave partial results in the workspace, and the last part to arrive merges them. In a cluster,
// each block has a slice of the columns: the others send it theirs, and it goes on with those.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
#pragma once

#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/decode/config.cuh"
#include "cuda/common/cluster.cuh"
#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {
namespace decode {

__device__ inline void sync_consumer() {
  constexpr std::uint32_t kBarrier = 1;
  cutlass::arch::NamedBarrier::sync(32 * kDecodeWarps, kBarrier);
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

// What a warp has of its 16 rows, from its keys. This thread has rows g and g + 8, where g is its
// lane / 4, and of O the columns that fragments give it.
template <typename Config>
struct WarpResult {
  float o[Config::C.value_dim / 8][4];
  float m[2];
  float l[2];
};

// ---- Pieces: four columns of a row of O, and the row's m and l

struct Piece {
  float m = kMinusInf;
  float l = 0.0f;
  float4 o{};
};

// Where the pieces lie that become one: the first, and from the second on, each a step behind the
// one before. In the block's SMEM, or in the workspace, where other blocks have written.
struct PieceSource {
  const float* m0;
  const float* l0;
  const float4* o0;
  const float* m1;
  const float* l1;
  const float4* o1;
  int step;    // of m and l, in floats
  int o_step;  // in pieces

  template <bool kInSmem>
  __device__ Piece at(int i) const {
    return i == 0 ? load<kInSmem>(m0, l0, o0)
                  : load<kInSmem>(m1 + (i - 1) * step, l1 + (i - 1) * step, o1 + (i - 1) * o_step);
  }

 private:
  template <bool kInSmem>
  __device__ static Piece load(const float* m, const float* l, const float4* o) {
    if constexpr (kInSmem) {
      return {.m = *m, .l = *l, .o = *o};
    } else {  // not from L1, which other blocks' writes do not reach
      return {.m = __ldcg(m), .l = __ldcg(l), .o = __ldcg(o)};
    }
  }
};

// Merges `count` pieces in their order: some at a time, whose loads are under way together.
template <bool kInSmem, int kAhead>
__device__ __forceinline__ Piece merge_pieces(int count, const PieceSource& source) {
  Piece merged;
#pragma unroll 1
  for (int first = 0; first < count; first += kAhead) {
    Piece pieces[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < count) {
        pieces[i] = source.at<kInSmem>(first + i);
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

// ---- What a warp leaves in SMEM

// Where a piece of warp `warp` lies in the part's last key tile: of its row g, columns from 4 q on.
// Neighbouring rows' pieces lie in different banks.
template <typename Config>
__device__ int place_in_tile(int warp, int g, int q) {
  return (warp * 8 + g) * (Config::C.value_dim / 4) + (q ^ g);
}

// Leaves this thread's row g of a pass's eight. A 16-bit V gives a thread two neighbouring columns
// of every eight; an E4M3 one gives it four of every 16, in the order 0, 2, 1, 3.
template <typename Config>
__device__ void leave_row(PassStatistics& statistics, float4* tile,
                          const WarpResult<Config>& result, int pass) {
  const int warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  if constexpr (Config::kIsE4m3) {
#pragma unroll
    for (int j = 0; j < Config::C.value_dim / 8; j += 2) {
      const float(&even)[4] = result.o[j];
      const float(&odd)[4] = result.o[j + 1];
      tile[place_in_tile<Config>(warp, g, 2 * j + t)] =
          pass == 0 ? float4{even[0], odd[0], even[1], odd[1]}
                    : float4{even[2], odd[2], even[3], odd[3]};
    }
  } else {
#pragma unroll
    for (int j = 0; j < Config::C.value_dim / 8; ++j) {
      const float(&o)[4] = result.o[j];
      auto* const pair =
          reinterpret_cast<float2*>(tile + place_in_tile<Config>(warp, g, 2 * j + t / 2));
      pair[t % 2] = pass == 0 ? float2{o[0], o[1]} : float2{o[2], o[3]};
    }
  }
  if (t == 0) {
    statistics.max[warp][g] = pass == 0 ? result.m[0] : result.m[1];
    statistics.sum[warp][g] = pass == 0 ? result.l[0] : result.l[1];
  }
}

// The pieces of row i of a pass, columns from 4 q on, of the warps that share the row tile's keys.
template <typename Config>
__device__ PieceSource of_warps(const PassStatistics& statistics, const float4* tile, int i,
                                int q) {
  constexpr int kWarp = Config::C.row_warps;  // from one to the next
  const int warp = i / 8;
  const int g = i % 8;
  const float* const max = &statistics.max[warp][g];
  const float* const sum = &statistics.sum[warp][g];
  const float4* const o = tile + place_in_tile<Config>(warp, g, q);
  constexpr int kStep = 8 * kWarp * (Config::C.value_dim / 4);
  return {max, sum, o, max + 8 * kWarp, sum + 8 * kWarp, o + kStep, 8 * kWarp, kStep};
}

// ---- Where merged pieces go

// Stores a merged piece as a part of the caller's results.
template <typename Element>
__device__ __forceinline__ void store_final(const Params& p, const Part& part, const Row& row,
                                            int column, const Piece& piece) {
  const bool is_normalized = p.statistics.max == nullptr;
  const RowResult result[1] = {row_result(p, row.head, piece.m, piece.l)};
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

// A row of a partial result in the workspace.
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

// The pieces of all of an item's parts, of one row, columns from `column` on.
template <int kValueDim>
__device__ PieceSource of_parts(const Launch& launch, const PartPlace& place, int row, int column) {
  const SlotRow first = slot_row<kValueDim>(launch, place.slot0, row);
  const SlotRow second = slot_row<kValueDim>(launch, place.slot1, row);
  const int step = place.slot_step * launch.slot_rows;
  return {first.max,
          first.sum,
          reinterpret_cast<const float4*>(first.o + column),
          second.max,
          second.sum,
          reinterpret_cast<const float4*>(second.o + column),
          step,
          step * (kValueDim / 4)};
}

// The consumer says that its slice of a partial result is in the workspace. Returns whether all
// parts' are.
template <typename Config>
__device__ bool arrives_last(SharedStorage<Config>& shared, const Launch& launch,
                             const PartPlace& place) {
  sync_consumer();  // all threads have stored
  if (threadIdx.x == 0) {
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

// ---- A part's results

// Merging goes from level to level: the warps of a block, the blocks of a cluster, the parts of an
// item.
enum class Level { warps, blocks, parts };

template <typename Config>
class Finish {
 public:
  // `tile` is the memory of the part's last key tile, null if it has none.
  __device__ Finish(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                    const Part& part, float4* tile)
      : shared_(shared), p_(p), launch_(launch), part_(part), tile_(tile) {}

  // `exchanges` counts the passes in a cluster.
  __device__ void run(const WarpResult<Config>& result, std::uint32_t& exchanges) {
    const bool is_cluster = Config::kMayCluster && launch_.workers.cluster > 1;
    const int rows = part_.tokens * launch_.shape.tile_heads;
    const int passes = rows > 8 ? 2 : 1;
    const bool has_parts = part_.place.parts > 1;
    Level level = Level::warps;
#pragma unroll 1
    for (int pass = 0;;) {
      // Before: what this level merges is there.
      if (level == Level::warps) {
        pass_ = pass;
        rows_ = Config::C.row_warps == 1 ? min(rows - 8 * pass, 8) : Config::kRows / 2;
        if (tile_ != nullptr) {
          sync_consumer();  // all warps have read the tile, and what the pass before left
          leave_row(shared_.statistics, tile_, result, pass);
          sync_consumer();
        }
        if (is_cluster) {
          begin_exchange(exchanges);
        }
      } else if (level == Level::blocks) {
        wait_for_exchange(exchanges++);
      } else {
        rows_ = rows;
      }
      if (level == Level::warps) {
        merge<Level::warps>(is_cluster);
      } else if (Config::kMayCluster && level == Level::blocks) {
        merge<Level::blocks>(is_cluster);
      } else {
        merge<Level::parts>(is_cluster);
      }
      // After: the next level, pass or nothing.
      if (level == Level::warps && is_cluster) {
        level = Level::blocks;
      } else if (level != Level::parts && ++pass < passes) {
        level = Level::warps;
      } else if (level != Level::parts && has_parts &&
                 arrives_last(shared_, launch_, part_.place)) {
        level = Level::parts;
      } else {
        break;
      }
    }
  }

 private:
  static constexpr int kPieces = Config::C.value_dim / 4;  // of a row

  // What was sent in the pass before has been read by all.
  __device__ void begin_exchange(std::uint32_t number) {
    if constexpr (Config::kMayCluster) {
      auto& exchange = shared_.exchange;
      const int size = launch_.workers.cluster;
      if (number > 0) {
        sync_consumer();
        arrive_in_all(exchange.read, size);
        wait_for_all(exchange.read, (number - 1) & 1);
      }
      if (threadIdx.x == 0) {
        exchange.written.arrive_and_expect_tx(rows_ *
                                              (kPieces * sizeof(float4) + size * sizeof(float2)));
      }
    }
  }

  __device__ void wait_for_exchange(std::uint32_t number) {
    if constexpr (Config::kMayCluster) {
      wait_for_all(shared_.exchange.written, number & 1);
    }
  }

  // Merges the block's pieces of each row, spread over the consumer's threads: all columns, or,
  // after an exchange, its slice.
  template <Level kLevel>
  __device__ __forceinline__ void merge(bool is_cluster) {
    constexpr bool kIsWhole = kLevel == Level::warps;
    constexpr int kMostAhead = Config::C.value_dim > 128 ? 4 : 8;  // O may have the registers
    constexpr int kAhead = kIsWhole ? Config::kKeyWarps : kMostAhead;
    const int size = is_cluster ? launch_.workers.cluster : 1;
    const int rank = is_cluster ? rank_in(launch_) : 0;
    const int slice = kIsWhole && !is_cluster ? kPieces : kPieces / size;
    const int pieces = kIsWhole ? kPieces : slice;
    const int count = kIsWhole                  ? (tile_ != nullptr ? kAhead : 0)
                      : kLevel == Level::blocks ? size
                                                : part_.place.parts;
    for (int i = threadIdx.x; i < rows_ * pieces; i += 32 * kDecodeWarps) {
      const int index = kIsWhole ? i / kPieces : quotient(i, pieces);
      const int in_row = i - index * pieces;
      const int q = kIsWhole ? in_row : rank * slice + in_row;
      PieceSource source;
      int tile_row = index / 8 * 16 + pass_ * 8 + index % 8;
      if constexpr (kIsWhole) {
        source = of_warps<Config>(shared_.statistics, tile_, index, q);
      } else if constexpr (kLevel == Level::blocks) {
        source = of_blocks(index, in_row, slice);
      } else {
        tile_row = index;
        source = of_parts<Config::C.value_dim>(launch_, part_.place, tile_row, 4 * q);
      }
      const Piece merged = merge_pieces<kLevel != Level::parts, kAhead>(count, source);
      if (kIsWhole && is_cluster) {
        send_piece(merged, index, q, slice, rank);
      } else {
        store(merged, tile_row, 4 * q, in_row == 0,
              kLevel == Level::parts || part_.place.parts == 1);
      }
    }
  }

  __device__ PieceSource of_blocks(int row, int q, int slice) const {
    if constexpr (Config::kMayCluster) {
      const auto& exchange = shared_.exchange;
      const float* const max = &exchange.statistics[0][row].x;
      const float4* const o = &exchange.o[row * slice + q];
      constexpr int kStep = 2 * Exchange<Config>::kPassRows;
      return {max,   max + 1,      o, max + kStep, max + kStep + 1, o + rows_ * slice,
              kStep, rows_ * slice};
    }
    return {};
  }

  // To the block that has the slice with this piece.
  __device__ void send_piece(const Piece& piece, int row, int q, int slice, int rank) {
    if constexpr (Config::kMayCluster) {
      auto& exchange = shared_.exchange;
      const int owner = quotient(q, slice);
      const int in_slice = q - owner * slice;
      const RemoteBarrier written(exchange.written, owner);
      send(&exchange.o[(rank * rows_ + row) * slice + in_slice], owner, piece.o, written);
      if (in_slice == 0) {
        send(&exchange.statistics[rank][row], owner, float2{piece.m, piece.l}, written);
      }
    }
  }

  // A cluster's blocks all leave a row's m and l, of which each waits for its own.
  __device__ void store(const Piece& piece, int tile_row, int column, bool is_first,
                        bool is_final) {
    const Row row = row_of(part_, launch_.shape, tile_row);
    if (!row.exists) {
      return;
    }
    if (is_final) {
      store_final<typename Config::Element>(p_, part_, row, column, piece);
    } else {
      const SlotRow at =
          slot_row<Config::C.value_dim>(launch_, part_.place.slot(part_.place.index), tile_row);
      *reinterpret_cast<float4*>(at.o + column) = piece.o;
      if (is_first) {
        *at.max = piece.m;
        *at.sum = piece.l;
      }
    }
  }

  SharedStorage<Config>& shared_;
  const Params& p_;
  const Launch& launch_;
  const Part& part_;
  float4* tile_;
  int pass_ = 0;
  int rows_ = 0;  // that are merged at once
};

}  // namespace decode
}  // namespace tilewright::cuda
