// nvfp4: the GEMM of 16-bit activations and NVFP4 weights, C = A B^T.
//
// New here, over nvfp4_simple: the GEMM is computed transposed, C^T = B A^T. So the weight is
// WGMMA's A operand, which may come from registers: a thread dequantises just the values of its
// fragment, out of a layout made for that, and nothing goes back to SMEM. It dequantises the next
// fragment while the tensor cores work on the one before. Blocks are persistent. Where tiles are
// too few, or some are left over, their chunks of K are dealt out evenly to all workers (stream-K).
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
// Programmatic dependent launch: a block may start before the previous launch on the stream has
// ended. Until then it initialises its barriers and, if the caller says that weights are constant
// and the block takes no stream-K ticket, loads its first weights. All else waits for that end.
//
// In a cluster, two blocks compute different rows of the weight for the same tokens. Each loads
// half of every tile of tokens for both: half of its columns, or else half of its rows.
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
#include "cuda/gemm/nvfp4/instance.cuh"
#include "cuda/gemm/nvfp4/partial_sums.cuh"
#include "cuda/gemm/nvfp4/schedule.hpp"

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

template <typename I>
__device__ int rank_in_worker() {
  return I::C.cluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster());
}

// The first row and token that this block computes of a tile.
template <typename I>
__device__ TileOrigin origin_of(const TileOrder& order, int tile) {
  constexpr Nvfp4Config C = I::C;
  const TileOrder::Position at = order.at(tile);
  return {.row = (at.row_tile * C.cluster + rank_in_worker<I>()) * C.rows(),
          .token = at.token_tile * order.tokens,
          .batch = at.batch};
}

// The packed line at which chunk `chunk` of a tile's weights begins.
template <typename I>
__device__ int line_of(int chunk) {
  return chunk * (I::kColumnSteps * kTileLines);
}

// A worker's number: its index or, under stream-K, a ticket. One of its threads draws the ticket
// once the launch ahead has ended, as that may still write to the tickets' memory.
template <typename I>
__device__ int take_number(const KernelParams& p) {
  const TicketCounter tickets{.word = p.partial.ticket, .epoch = p.partial.epoch};
  if (tickets.word == nullptr) {
    return static_cast<int>(blockIdx.x) / I::C.cluster;
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
template <typename I>
__device__ int worker_of(const SharedStorage<I>& shared) {
  return *const_cast<const volatile int*>(&shared.worker);
}

// Sets up the barriers and the worker's number, which the block's threads share.
template <typename I>
__device__ void set_up(SharedStorage<I>& shared, const KernelParams& p) {
  if (threadIdx.x == 0) {
    shared.ring.init(I::kConsumers * 4);
    cutlass::arch::fence_barrier_init();
    if (rank_in_worker<I>() == 0) {
      shared.worker = take_number<I>(p);
    }
  }
  if constexpr (I::C.cluster > 1) {
    cluster_sync();
    if (threadIdx.x == 0 && rank_in_worker<I>() > 0) {
      shared.worker = load_from_block(0, shared.worker);
    }
  }
  if (threadIdx.x < 32) {  // this warp loads at once; the others wait for it
    __syncwarp();
    I::Barrier::arrive(I::kThreads, kSetUpBarrier);
  } else {
    I::Barrier::sync(I::kThreads, kSetUpBarrier);
  }
}

// One thread loads all that the consumers read.
template <typename I>
class Loader {
 public:
  using Shared = SharedStorage<I>;

  __device__ Loader(Shared& shared, const KernelParams& p, const CUtensorMap& map_a,
                    const CUtensorMap& map_b)
      : shared_(shared),
        p_(p),
        map_a_(map_a),
        map_b_(map_b),
        walk_(p.schedule, worker_of(shared)) {}

  __device__ void run() {
    typename SharedStorage<I>::Position at;
    bool has_waited = false;
    if (!p_.b_is_ready) {
      wait_for_launch_before();
    }
    for (TilePart part; walk_.next(p_.schedule, part);) {
      origin_ = origin_of<I>(p_.order, part.tile);
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
  static constexpr Nvfp4Config C = I::C;
  static constexpr auto kNoHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);

  __device__ void load_weights(const typename SharedStorage<I>::Position& at, int chunk) {
    constexpr int kTokenBytes = I::kColumnSteps * 64 * sizeof(typename I::Element);
    TmaBarrier& full =
        shared_.ring.acquire(at, p_.order.tokens * kTokenBytes + sizeof(shared_.sB[0]));
    SM90_TMA_LOAD_4D::copy(&map_b_, reinterpret_cast<std::uint64_t*>(&full), kNoHint,
                           shared_.sB[at.stage], 0, line_of<I>(chunk),
                           origin_.row / WeightTile::kRows, origin_.batch);
  }

  // Loads this block's share of a chunk's tokens, for the whole cluster.
  __device__ void load_tokens(const typename SharedStorage<I>::Position& at, int chunk) {
    const int rank = rank_in_worker<I>();
    const int first_step = I::kDividesSteps ? rank * I::kShareSteps : 0;
    const int first_token = I::kDividesSteps ? 0 : rank * I::kShareTokens;
    const int step = chunk * I::kColumnSteps + first_step;
    auto* const target = shared_.sA[at.stage] + first_step;
    if (p_.copies_steps_together) {
      copy_tokens(at, target[0] + first_token * 64, 0, origin_.token + first_token, step);
    } else {
#pragma unroll 1
      for (int i = 0; i < I::kShareSteps; ++i) {
        copy_tokens(at, target[i] + first_token * 64, (step + i) * 64, origin_.token + first_token,
                    0);
      }
    }
  }

  __device__ void copy_tokens(const typename SharedStorage<I>::Position& at,
                              typename I::Element* target, int column, int token, int step) {
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
template <typename I>
__device__ int slot_of(int worker) {
  return worker * I::C.cluster + rank_in_worker<I>();
}

// The slots with the sums of a tile's other parts, which worker `reducer` adds to its own.
template <typename I>
__device__ SlotRange slots_of(const GemmSchedule& schedule, int tile, int reducer) {
  return {.first = slot_of<I>(first_worker(schedule, tile, reducer)),
          .end = slot_of<I>(reducer),
          .step = I::C.cluster};
}

// The courier. Under stream-K, a worker hands over the sums of one part at most, and is the reducer
// of one tile of several parts at most.
template <typename I>
__device__ void carry_sums(SharedStorage<I>& shared, const KernelParams& p) {
  const Courier courier(p.partial);
  const int worker = worker_of(shared);
  PartWalk walk(p.schedule, worker);
  for (TilePart part; walk.next(p.schedule, part);) {
    if (part.end < p.schedule.chunks) {
      I::Barrier::sync(I::kCourierThreads, kStoredBarrier);
      courier.announce(slot_of<I>(worker));
    } else if (part.begin > 0) {
      courier.await(slots_of<I>(p.schedule, part.tile, worker));
      I::Barrier::arrive(I::kCourierThreads, kArrivedBarrier);
    }
  }
}

// Stores a tile's sums to C by TMA, if one factor can finish them. Returns whether it did.
// `origin.row` is the warp's first row.
template <typename I, typename Accumulator>
__device__ bool store_tile(SharedStorage<I>& shared, const KernelParams& p,
                           const CUtensorMap& map_c, int row_consumer, const Accumulator& sums,
                           const TileOrigin& origin, const typename I::Epilogue::Inputs& inputs) {
  const int barrier = kRowsBarrier + row_consumer;
  const typename I::Epilogue::Factors factors(p.gemm, origin.batch, inputs);
  if (!I::Store::begin(barrier, factors.are_normal())) {
    return false;
  }
  const TileOrigin tile{.row = origin.row / WeightTile::kRows * WeightTile::kRows,
                        .token = origin.token,
                        .batch = origin.batch};
  const auto value = [&](int i) { return I::Epilogue::finished(sums, i, factors, inputs); };
  auto& buffer = shared.transpose[row_consumer].tile;
  if (p.gemm.c_dtype == DType::bf16) {
    I::Store::template run<__nv_bfloat16>(map_c, buffer, barrier, tile, value);
  } else {
    I::Store::template run<__half>(map_c, buffer, barrier, tile, value);
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

// Where a consumer stands in its block, and a thread in its consumer.
struct ConsumerPlace {
  int row_consumer;
  int column_consumer;
  int thread;
};

// Finds out where in C the warp's rows and the consumer's tokens lie. If the consumer finishes
// them, it also loads what their sums meet there.
template <typename I>
__device__ void prepare_end(const KernelParams& p, const ConsumerPlace& place, const TilePart& part,
                            bool finishes, TileOrigin& origin,
                            typename I::Epilogue::Inputs& inputs) {
  origin = origin_of<I>(p.order, part.tile);
  origin.row += place.row_consumer * WeightTile::kRows + warp_asked_anew() * I::Epilogue::kRows;
  origin.end = min(p.gemm.m, origin.token + p.order.tokens);
  origin.token += place.column_consumer * I::kOwnTokens;
  if (finishes && place.column_consumer < I::kColumnFinishers) {
    inputs = I::Epilogue::load(p.gemm, p.is_plain, origin);
  }
}

// What a consumer does with the sums of a part. First, consumers of the same rows add up theirs. If
// the part lacks the tile's last chunks, the sums go to the tile's reducer. Otherwise this worker
// finishes the tile: it adds the sums of the other parts, if there are any, and writes C.
template <typename I, typename Sums>
__device__ void finish_part(SharedStorage<I>& shared, const KernelParams& p,
                            const CUtensorMap& map_c, const ConsumerPlace& place, int worker,
                            const TilePart& part, Sums& sums, const TileOrigin& origin,
                            const typename I::Epilogue::Inputs& inputs) {
  constexpr Nvfp4Config C = I::C;
  if constexpr (C.column_consumers > 1) {
    add_up_columns(shared.sums, place.row_consumer, place.column_consumer, place.thread,
                   kRowsBarrier + place.row_consumer, sums);
    if (place.column_consumer >= I::kColumnFinishers) {
      return;
    }
  }
  const int finisher = place.row_consumer * I::kColumnFinishers + place.column_consumer;
  const typename I::Sums exchange(p.partial, finisher * 128 + place.thread);
  if (part.end != p.schedule.chunks) {
    exchange.store(slot_of<I>(worker), sums);
    I::Barrier::arrive(I::kCourierThreads, kStoredBarrier);
    return;
  }
  if (part.begin > 0) {
    I::Barrier::sync(I::kCourierThreads, kArrivedBarrier);
    exchange.add(slots_of<I>(p.schedule, part.tile, worker), sums);
  }
  if constexpr (C.stores_tiles()) {
    if (p.is_plain && store_tile(shared, p, map_c, place.row_consumer, sums, origin, inputs)) {
      return;
    }
  }
  I::Epilogue::run(p.gemm, p.is_plain, shared.transpose[finisher].warps[warp_asked_anew()], sums,
                   origin, inputs);
}

// The tokens of all stages as WGMMA's B operand.
template <typename I>
__device__ auto token_operand(SharedStorage<I>& shared) {
  const auto slice = typename I::TiledMma{}.get_slice(0);  // the same for every thread
  return slice.make_fragment_B(slice.partition_B(
      make_tensor(make_smem_ptr(&shared.sA[0][0][0]), typename SharedStorage<I>::LayoutA{})));
}

// A consumer's main loop: it computes the sums over a part's chunks, the first of which is at `at`
// in the ring. It calls `prepare_end` before them; for large tiles after the first WGMMAs, so that
// what that loads arrives while the tensor cores are at work.
template <typename I, typename Accumulator, typename Totals, typename PrepareEnd>
__device__ void compute_sums(SharedStorage<I>& shared, const ConsumerPlace& place,
                             typename SharedStorage<I>::Position& at, int chunks,
                             const PrepareEnd& prepare_end, Accumulator& acc, Totals& totals) {
  constexpr Nvfp4Config C = I::C;
  typename I::TiledMma mma;
  const auto tA = token_operand(shared);
  decltype(weight_fragment<typename I::Element>()) fragments[2];  // used alternately
  auto sums = make_tensor(acc.data(), make_layout(size(acc)));

  if constexpr (C.steps > 1) {
    prepare_end();
    clear(acc);
  }
  if constexpr (I::kHasTotals) {
    clear(totals);
  }
  typename SharedStorage<I>::Position previous = at;

  // While the tensor cores are at work on one fragment of the weight, the next is dequantised.
  const auto compute_chunk = [&](bool is_first, auto first_fragment, auto accumulates) {
    constexpr int kSteps = C.steps;
    const int first_tile = place.column_consumer * kSteps;
    shared.ring.wait(at);
    PackedTile packed[kSteps];  // loaded together, for one latency
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      packed[step] = PackedTile::load(
          shared.sB[at.stage][place.row_consumer] + (first_tile + step) * WeightTile::k_bytes,
          place.thread);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      auto& fragment = fragments[(first_fragment + step) % 2];
      dequantize_tile<typename I::Element>(packed[step], fragment);
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
      if constexpr (I::kHasTotals) {
        if (chunk % I::kChunksOfSum == I::kChunksOfSum - 1) {
          wgmma_wait<0>(acc);
          add_to_totals(sums, totals);
        }
      }
    }
  } else {
    compute_chunk(true, Int<0>{}, std::false_type{});
    prepare_end();
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
  if constexpr (I::kHasTotals) {
    add_to_totals(totals, sums);
  }
}

// A consumer: for each part, it computes the sums of its rows over its columns of all chunks.
template <typename I>
__device__ void compute(SharedStorage<I>& shared, const KernelParams& p, const CUtensorMap& map_c,
                        int consumer) {
  constexpr Nvfp4Config C = I::C;
  const ConsumerPlace place{consumer / C.column_consumers, consumer % C.column_consumers,
                            static_cast<int>(threadIdx.x % 128)};
  auto acc = partition_fragment_C(typename I::TiledMma{}, cute::Shape<_64, Int<C.tokens>>{});
  auto sums = make_tensor(acc.data(), make_layout(size(acc)));
  auto totals = make_fragment_like(sums);  // used if C is FP32

  typename SharedStorage<I>::Position at;
  PartWalk walk(p.schedule, __shfl_sync(0xffffffffu, worker_of(shared), 0));  // uniform
  for (TilePart part; walk.next(p.schedule, part);) {
    TileOrigin origin{};
    const bool finishes = part.end == p.schedule.chunks;
    typename I::Epilogue::Inputs inputs{};
    const int chunks = __shfl_sync(0xffffffffu, part.end - part.begin, 0);  // uniform
    const auto prepare = [&] { prepare_end<I>(p, place, part, finishes, origin, inputs); };
    compute_sums(shared, place, at, chunks, prepare, acc, totals);
    // The main loop is the same for all threads of a warp, and runs on uniform registers, as long
    // as the compiler sees that. It does not where a loaded number is used, unless that is
    // shuffled.
    const int worker = C.is_large() ? worker_of(shared) : walk.worker();
    finish_part(shared, p, map_c, place, worker, part, sums, origin, inputs);
  }
  if constexpr (C.stores_tiles()) {
    I::Store::finish();
  }
}

template <typename I>
__global__ void __launch_bounds__(I::kThreads, 1)
    nvfp4(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap map_a,
          const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_c) {
  constexpr Nvfp4Config C = I::C;
  extern __shared__ __align__(1024) char raw[];
  auto& shared = *reinterpret_cast<SharedStorage<I>*>(raw);
  if (threadIdx.x == 32) {
    prefetch_tma_descriptor(&map_a);
    prefetch_tma_descriptor(&map_b);
    if (C.stores_tiles() && p.is_plain) {
      prefetch_tma_descriptor(&map_c);
    }
  }
  set_up<I>(shared, p);
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    if constexpr (I::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<I::kProducerRegisters>();
    }
    if (threadIdx.x == 0) {
      Loader<I>(shared, p, map_a, map_b).run();
    } else if (threadIdx.x / 32 == 1) {
      wait_for_launch_before();
      carry_sums<I>(shared, p);
    }
    __syncwarp();
  } else {
    if constexpr (I::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_alloc<I::kConsumerRegisters>();
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
