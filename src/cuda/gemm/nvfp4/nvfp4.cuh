// nvfp4: the GEMM of 16-bit activations and NVFP4 weights, C = A B^T.
//
// New here, over nvfp4_simple: the GEMM is computed transposed, C^T = B A^T. So the weight is
// WGMMA's A operand, which may come from registers: a thread dequantises just the values of its
// fragment, out of a layout made for that, and nothing goes back to SMEM. It dequantises the next
// fragment while the tensor cores work on the one before. Blocks are persistent; where tiles are
// too few, or some are left over, the workers share these out along K (stream-K).
//
// Source    the NVFP4 article by NVIDIA, part 2; Marlin (Frantar et al., 2024) for weights kept in
//           the order of the fragments; Stream-K (Osama et al., 2023); tilewright/gemm_nvfp4.hpp.
// Tiles     configs.hpp: 64 or 128 rows of the weight, 8 to 256 tokens, 64 to 1024 columns a chunk.
// SMEM      sA stages x tokens x columns, 16-bit; sB stages x rows x columns x 9 / 16 bytes; up to
//           64 KB in which sums are added up and transposed. The stages take all the rest.
// Registers tokens / 2 accumulators, as many totals if C is FP32, and two fragments of 16.
//
//   warp 0, a thread  load: tokens (128-byte swizzle) and packed weight tiles, all by TMA
//   warp 1            courier: announces this worker's partial sums, and awaits those of others
//   consumers         wait | dequantise, issue WGMMA, dequantise, issue WGMMA, ... | release | at a
//                     part's end: store its sums; or, as the reducer, add others' sums and write C
//
// Programmatic dependent launch: before the launch ahead on the stream has ended, a block sets
// itself up. It also loads its first weights, if they are constant and its worker's number is not a
// ticket. Everything else waits until that launch has ended.
//
// In a cluster, two blocks compute different rows of the weight for the same tokens: each loads
// half of the tokens, for both.
//
// Layouts   nvfp4_weight_layout.hpp; tokens are K-major, 64 columns wide in SMEM.
// Worklog   docs/worklog/nvfp4-gemm.md
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/common/launch_order.cuh"
#include "cuda/common/ticket.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/gemm/nvfp4/epilogue.cuh"
#include "cuda/gemm/nvfp4/fragment.cuh"
#include "cuda/gemm/nvfp4/partial_sums.cuh"
#include "cuda/gemm/nvfp4/schedule.hpp"
#include "cuda/gemm/nvfp4/shape.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

using namespace cute;

struct KernelParams {
  GemmSchedule schedule;  // first, as it is needed first
  TileOrder order;
  GemmNvfp4Params gemm;
  PartialSums partial;
  bool b_is_ready;  // even before the launch ahead has ended
  bool is_plain;
  bool copies_steps_together;  // of the tokens: token_map_spec()
};

template <typename S>
__device__ int rank_in_worker() {
  return S::C.cluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster());
}

// The first row and token of this block's share of a tile.
template <typename S>
__device__ TileOrigin origin_of(const TileOrder& order, int tile) {
  constexpr Nvfp4Config C = S::C;
  const TileOrder::Position at = order.at(tile);
  return {.row = (at.row_tile * C.cluster + rank_in_worker<S>()) * C.rows(),
          .token = at.token_tile * order.tokens,
          .batch = at.batch};
}

// The packed line at which chunk `chunk` of a tile's weights begins.
template <typename S>
__device__ int line_of(int chunk) {
  return chunk * (S::kColumnSteps * kTileLines);
}

// A worker's number: its index or, under stream-K, a ticket. One of its threads asks for it, once
// the launch ahead has ended, which may still write to the tickets' memory.
template <typename S>
__device__ int take_number(const KernelParams& p) {
  const TicketCounter tickets{.word = p.partial.ticket, .epoch = p.partial.epoch};
  if (tickets.word == nullptr) {
    return static_cast<int>(blockIdx.x) / S::C.cluster;
  }
  wait_for_launch_before();
  const int number = tickets.take();
  if (number == p.schedule.workers - 1) {
    tickets.clear();
  }
  return number;
}

// Loads a word from the SMEM of another block of the cluster.
__device__ inline int load_from_block(std::uint32_t rank, const int& word) {
  int value = 0;
  asm volatile("ld.shared::cluster.s32 %0, [%1];"
               : "=r"(value)
               : "r"(set_block_rank(cast_smem_ptr_to_uint(&word), rank))
               : "memory");
  return value;
}

// The number of the worker that this block is, or belongs to. It is read anew whenever it is
// needed, so that it holds no register in the main loop.
template <typename S>
__device__ int worker_of(const SharedStorage<S>& shared) {
  return *const_cast<const volatile int*>(&shared.worker);
}

// Sets up the barriers and the worker's number, which the block's threads share.
template <typename S>
__device__ void set_up(SharedStorage<S>& shared, const KernelParams& p) {
  if (threadIdx.x == 0) {
    shared.ring.init(S::kConsumers * 4);
    cutlass::arch::fence_barrier_init();
    if (rank_in_worker<S>() == 0) {
      shared.worker = take_number<S>(p);
    }
  }
  if constexpr (S::C.cluster > 1) {
    cluster_sync();
    if (threadIdx.x == 0 && rank_in_worker<S>() > 0) {
      shared.worker = load_from_block(0, shared.worker);
    }
  }
  if (threadIdx.x < 32) {  // this warp loads at once; the others wait for it
    __syncwarp();
    S::Barrier::arrive(S::kThreads, kSetUpBarrier);
  } else {
    S::Barrier::sync(S::kThreads, kSetUpBarrier);
  }
}

// One thread loads all that the consumers read.
template <typename S>
class Loader {
 public:
  using Shared = SharedStorage<S>;

  __device__ Loader(Shared& shared, const KernelParams& p, const CUtensorMap& map_a,
                    const CUtensorMap& map_b)
      : shared_(shared),
        p_(p),
        map_a_(map_a),
        map_b_(map_b),
        walk_(p.schedule, worker_of(shared)) {}

  __device__ void run() {
    typename SharedStorage<S>::Position at;
    bool has_waited = false;
    if (!p_.b_is_ready) {
      wait_for_launch_before();
    }
    for (TilePart part; walk_.next(p_.schedule, part);) {
      origin_ = origin_of<S>(p_.order, part.tile);
      for (int chunk = part.begin; chunk < part.end; ++chunk) {
        load_weights(at, chunk);
        if (!has_waited) {
          wait_for_launch_before();
          let_next_launch_start();
          has_waited = true;
        }
        load_tokens(at, chunk);
        at.advance();
      }
    }
  }

 private:
  static constexpr Nvfp4Config C = S::C;
  static constexpr auto kNoHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);

  __device__ void load_weights(const typename SharedStorage<S>::Position& at, int chunk) {
    constexpr int kTokenBytes = S::kColumnSteps * 64 * sizeof(typename S::Element);
    TmaBarrier& full =
        shared_.ring.acquire(at, p_.order.tokens * kTokenBytes + sizeof(shared_.sB[0]));
    SM90_TMA_LOAD_4D::copy(&map_b_, reinterpret_cast<std::uint64_t*>(&full), kNoHint,
                           shared_.sB[at.stage], 0, line_of<S>(chunk),
                           origin_.row / WeightTile::kRows, origin_.batch);
  }

  // Loads this block's share of a chunk's tokens, for the whole cluster.
  __device__ void load_tokens(const typename SharedStorage<S>::Position& at, int chunk) {
    const int rank = rank_in_worker<S>();
    const int first_step = S::kSharesSteps ? rank * S::kShareSteps : 0;
    const int first_token = S::kSharesSteps ? 0 : rank * S::kShareTokens;
    const int step = chunk * S::kColumnSteps + first_step;
    auto* const target = shared_.sA[at.stage] + first_step;
    if (p_.copies_steps_together) {
      copy_tokens(at, target[0] + first_token * 64, 0, origin_.token + first_token, step);
    } else {
#pragma unroll 1
      for (int i = 0; i < S::kShareSteps; ++i) {
        copy_tokens(at, target[i] + first_token * 64, (step + i) * 64, origin_.token + first_token,
                    0);
      }
    }
  }

  __device__ void copy_tokens(const typename SharedStorage<S>::Position& at,
                              typename S::Element* target, int column, int token, int step) {
    auto* const full = reinterpret_cast<std::uint64_t*>(&shared_.ring.full[at.stage]);
    if constexpr (C.cluster == 1) {
      SM90_TMA_LOAD_4D::copy(&map_a_, full, kNoHint, target, column, token, step, origin_.batch);
    } else {
      SM90_TMA_LOAD_MULTICAST_4D::copy(&map_a_, full, (1u << C.cluster) - 1, kNoHint, target,
                                       column, token, step, origin_.batch);
    }
  }

  Shared& shared_;
  const KernelParams& p_;
  const CUtensorMap& map_a_;
  const CUtensorMap& map_b_;
  PartWalk walk_;
  TileOrigin origin_{};
};

// This block's slot for the sums of worker `worker`.
template <typename S>
__device__ int slot_of(int worker) {
  return worker * S::C.cluster + rank_in_worker<S>();
}

// The slots with the sums of a tile's other parts, which its reducer `owner` adds to its own.
template <typename S>
__device__ SlotRange slots_of(const GemmSchedule& schedule, int tile, int owner) {
  return {.first = slot_of<S>(first_worker(schedule, tile, owner)),
          .end = slot_of<S>(owner),
          .step = S::C.cluster};
}

// The courier. Under stream-K, a worker hands over the sums of one part at most, and is the reducer
// of one tile of several parts at most.
template <typename S>
__device__ void carry_sums(SharedStorage<S>& shared, const KernelParams& p) {
  const Courier courier(p.partial);
  const int worker = worker_of(shared);
  PartWalk walk(p.schedule, worker);
  for (TilePart part; walk.next(p.schedule, part);) {
    if (part.end < p.schedule.chunks) {
      S::Barrier::sync(S::kCourierThreads, kStoredBarrier);
      courier.announce(slot_of<S>(worker));
    } else if (part.begin > 0) {
      courier.await(slots_of<S>(p.schedule, part.tile, worker));
      S::Barrier::arrive(S::kCourierThreads, kArrivedBarrier);
    }
  }
}

// Adds up the sums of the consumers of the same rows. Afterwards each sharer has the sums of its
// own tokens, in the first of its accumulators.
template <typename S, typename Accumulator>
__device__ void add_up_columns(SharedStorage<S>& shared, int row_consumer, int column_consumer,
                               int thread, Accumulator& sums) {
  constexpr int kThreads = S::C.column_consumers * 128;
  const int barrier = kRowsBarrier + row_consumer;
#pragma unroll
  for (int sharer = 0; sharer < S::kSharers; ++sharer) {
    if (sharer == column_consumer) {
#pragma unroll
      for (int i = 0; sharer > 0 && i < S::kOwnSums; ++i) {
        sums(i) = sums(sharer * S::kOwnSums + i);
      }
    } else {
      auto& to = shared.sums.at[row_consumer][sharer][column_consumer - (column_consumer > sharer)];
#pragma unroll
      for (int i = 0; i < S::kOwnSums; i += 4) {
        const int at = sharer * S::kOwnSums + i;
        to[i / 4][thread] = make_float4(sums(at), sums(at + 1), sums(at + 2), sums(at + 3));
      }
    }
  }
  S::Barrier::sync(kThreads, barrier);
  if (column_consumer < S::kSharers) {
#pragma unroll
    for (int other = 0; other < S::C.column_consumers - 1; ++other) {
#pragma unroll
      for (int i = 0; i < S::kOwnSums; i += 4) {
        const float4 more = shared.sums.at[row_consumer][column_consumer][other][i / 4][thread];
        sums(i) += more.x;
        sums(i + 1) += more.y;
        sums(i + 2) += more.z;
        sums(i + 3) += more.w;
      }
    }
  }
  S::Barrier::sync(kThreads, barrier);  // all sums have been read
}

// Stores a tile's sums to C by TMA, if one factor can finish them. Returns whether it did.
// `origin.row` is the warp's first row.
template <typename S, typename Accumulator>
__device__ bool store_tile(SharedStorage<S>& shared, const KernelParams& p,
                           const CUtensorMap& map_c, int row_consumer, const Accumulator& sums,
                           const TileOrigin& origin, const typename S::Epilogue::Inputs& inputs) {
  const int barrier = kRowsBarrier + row_consumer;
  const typename S::Epilogue::Factors factors(p.gemm, origin.batch, inputs);
  if (!S::Store::begin(barrier, factors.are_normal())) {
    return false;
  }
  const TileOrigin tile{.row = origin.row / WeightTile::kRows * WeightTile::kRows,
                        .token = origin.token,
                        .batch = origin.batch};
  const auto value = [&](int i) { return S::Epilogue::finished(sums, i, factors, inputs); };
  auto& stage = shared.turn[row_consumer].tile;
  if (p.gemm.c_dtype == DType::bf16) {
    S::Store::template run<__nv_bfloat16>(map_c, stage, barrier, tile, value);
  } else {
    S::Store::template run<__half>(map_c, stage, barrier, tile, value);
  }
  return true;
}

// Adds the sums to the totals, rounded to nearest, and sets them to 0.
template <typename Sums, typename Totals>
__device__ void add_to_totals(Sums& sums, Totals& totals) {
#pragma unroll
  for (int i = 0; i < size(sums); ++i) {
    totals(i) += sums(i);
    sums(i) = 0.0f;
  }
}

// A consumer: for each part, it computes the sums of its rows over its columns of all chunks.
template <typename S>
__device__ void compute(SharedStorage<S>& shared, const KernelParams& p, const CUtensorMap& map_c,
                        int consumer) {
  constexpr Nvfp4Config C = S::C;
  const int thread = static_cast<int>(threadIdx.x % 128);
  typename S::TiledMma mma;
  const auto slice = mma.get_slice(0);  // a descriptor is the same for every thread
  const auto tA = slice.make_fragment_B(slice.partition_B(
      make_tensor(make_smem_ptr(&shared.sA[0][0][0]), typename SharedStorage<S>::LayoutA{})));
  auto acc = partition_fragment_C(mma, cute::Shape<_64, Int<C.tokens>>{});
  auto sums = make_tensor(acc.data(), make_layout(size(acc)));
  auto totals = make_fragment_like(sums);  // used if C is FP32
  const int row_consumer = consumer / C.column_consumers;
  const int column_consumer = consumer % C.column_consumers;
  decltype(weight_fragment<typename S::Element>()) fragments[2];  // used alternately

  typename SharedStorage<S>::Position at;
  PartWalk walk(p.schedule, __shfl_sync(0xffffffffu, worker_of(shared), 0));  // uniform
  for (TilePart part; walk.next(p.schedule, part);) {
    TileOrigin origin{};
    const bool finishes = part.end == p.schedule.chunks;
    typename S::Epilogue::Inputs inputs{};
    const auto prepare_end = [&] {
      origin = origin_of<S>(p.order, part.tile);
      origin.row += row_consumer * WeightTile::kRows + warp_asked_anew() * S::Epilogue::kRows;
      origin.end = min(p.gemm.m, origin.token + p.order.tokens);
      origin.token += column_consumer * S::kOwnTokens;
      if (finishes && column_consumer < S::kSharers) {
        inputs = S::Epilogue::load(p.gemm, p.is_plain, origin);
      }
    };
    const int chunks = __shfl_sync(0xffffffffu, part.end - part.begin, 0);  // uniform
    if constexpr (C.steps > 1) {
      prepare_end();
      clear(acc);
    }
    if constexpr (S::kHasTotals) {
      clear(totals);
    }
    typename SharedStorage<S>::Position previous = at;
    const auto compute_chunk = [&](bool is_first, auto first_fragment, auto accumulates) {
      constexpr int kSteps = C.steps;
      const int first_tile = column_consumer * kSteps;
      shared.ring.wait(at);
      PackedTile packed[kSteps];  // loaded together, for one latency
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        packed[step] = PackedTile::load(
            shared.sB[at.stage][row_consumer] + (first_tile + step) * WeightTile::k_bytes, thread);
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        auto& fragment = fragments[(first_fragment + step) % 2];
        dequantize_tile<typename S::Element>(packed[step], fragment);
        wgmma_issue<decltype(accumulates)::value>(mma, fragment,
                                                  tA(_, _, _, first_tile + step, at.stage), acc);
        wgmma_wait<1>(acc);
        if (step == 0 && !is_first) {
          shared.ring.release(previous);
        }
      }
      previous = at;
      at.advance();
    };
    if constexpr (C.steps > 1) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        compute_chunk(chunk == 0, Int<0>{}, std::true_type{});
        if constexpr (S::kHasTotals) {
          if (chunk % S::kChunksOfSum == S::kChunksOfSum - 1) {
            wgmma_wait<0>(acc);
            add_to_totals(sums, totals);
          }
        }
      }
    } else {
      compute_chunk(true, Int<0>{}, std::false_type{});
      prepare_end();                                  // the tensor cores are at work
      for (int chunk = 1; chunk < chunks; ++chunk) {  // fragments alternate
        compute_chunk(false, Int<1>{}, std::true_type{});
        if (++chunk == chunks) {
          break;
        }
        compute_chunk(false, Int<0>{}, std::true_type{});
      }
    }
    wgmma_wait<0>(acc);
    shared.ring.release(previous);
    if constexpr (S::kHasTotals) {
      add_to_totals(totals, sums);
    }

    if constexpr (C.column_consumers > 1) {
      add_up_columns(shared, row_consumer, column_consumer, thread, sums);
      if (column_consumer >= S::kSharers) {
        continue;
      }
    }
    const int owner = row_consumer * S::kSharers + column_consumer;
    const typename S::Sums exchange(p.partial, owner * 128 + thread);
    if (!finishes) {
      exchange.store(slot_of<S>(worker_of(shared)), sums);
      S::Barrier::arrive(S::kCourierThreads, kStoredBarrier);
      continue;
    }
    if (part.begin > 0) {
      S::Barrier::sync(S::kCourierThreads, kArrivedBarrier);
      exchange.add(slots_of<S>(p.schedule, part.tile, worker_of(shared)), sums);
    }
    if constexpr (C.stores_tiles()) {
      if (p.is_plain && store_tile(shared, p, map_c, row_consumer, sums, origin, inputs)) {
        continue;
      }
    }
    S::Epilogue::run(p.gemm, p.is_plain, shared.turn[owner].warps[warp_asked_anew()], sums, origin,
                     inputs);
  }
  if constexpr (C.stores_tiles()) {
    S::Store::finish();
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    nvfp4(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap map_a,
          const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_c) {
  constexpr Nvfp4Config C = S::C;
  extern __shared__ __align__(1024) char raw[];
  auto& shared = *reinterpret_cast<SharedStorage<S>*>(raw);
  if (threadIdx.x == 32) {
    prefetch_tma_descriptor(&map_a);
    prefetch_tma_descriptor(&map_b);
    if (C.stores_tiles() && p.is_plain) {
      prefetch_tma_descriptor(&map_c);
    }
  }
  set_up<S>(shared, p);
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    if constexpr (S::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<S::kProducerRegisters>();
    }
    if (threadIdx.x == 0) {
      Loader<S>(shared, p, map_a, map_b).run();
    } else if (threadIdx.x / 32 == 1) {
      wait_for_launch_before();
      carry_sums<S>(shared, p);
    }
    __syncwarp();
  } else {
    if constexpr (S::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_alloc<S::kConsumerRegisters>();
    }
    wait_for_launch_before();
    compute(shared, p, map_c, warpgroup - 1);
  }
  if constexpr (C.cluster > 1) {
    cluster_sync();  // no block ends while others still write to its SMEM
  }
}

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
