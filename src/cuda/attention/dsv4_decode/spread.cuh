// DeepSeek-V4's attention for small batches: a cluster of eight blocks spreads a part of an item
// (kernel dsv4_spread, one of dsv4_decode's configs).
//
// In dsv4_decode, blocks of a cluster leave P V of their pairs in FP32, 128 KB each, and merge it.
// Here they exchange P, 16 KB a pair, and each block has 64 of O's columns from the beginning. The
// bits are the same: P V of a pair comes out of the tensor cores by itself, and FMAs add it to O in
// the pairs' order.
//
// Source    as dsv4_decode
// Tiles     64 rows, 64 keys, 512 dims for S and 64 for P V; 512 threads; one block an SM.
// SMEM      Q 64 KB and then P of five pairs, 80 KB; a pair of key tiles, 128 KB, and then 64
//           columns of ten tiles: 208 KB (+ 16 KB).
// Registers 128 a thread, of which 64 hold a producer's whole share of a key tile.
//
//   block j    producers   places | K of pair j | V: columns 64 j to 64 j + 63 of all tiles
//              consumer 0  ........ S | softmax | P0 to memory | O = P V, its first 32 columns
//              consumer 1  ........ S | softmax | P1 to memory, P to all blocks | O = P V, others
//
// A round is ten tiles, a pair for each of five blocks. The plan chooses this kernel for parts of
// one round, but any part is right. P goes through memory since TMA multicasts from there alone. A
// block multicasts P when all blocks have said that its place is free, where Q was.
//
// A list's length and its entries would be memory's latency behind each other. So a warp guesses
// that there are as many keys as there may be: places in lists, and Q, are asked for by that.
//
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/attention/dsv4_decode/spread_produce.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

// A consumer. It computes S and P of one tile of the own pair, and has half of the block's columns.
class SpreadConsumer {
 public:
  __device__ SpreadConsumer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run(const CUtensorMap& map_q) {
    Job& job = shared_.job;
    Fragment tOrO;
    cute::clear(tOrO);
    wait_for_launch_before();
    find(map_q);
    for (int round = 0;; ++round) {
      if (uniform(job.unit.index) >= launch_.units) {
        arrive(shared_.job_full);
        if (shared_.has_guessed_q()) {
          shared_.q_full.wait(0);
        }
        return;
      }
      find_places(round);
      const Round its(job);
      if (this_thread() == kProducerThreads) {
        expect_p(its);
        if (its.has_own && !(round == 0 && shared_.has_guessed_q())) {
          load_q(shared_.p[0][0], shared_.q_full, job.unit, launch_, map_q);
        }
      }
      __syncwarp();
      if (its.has_own) {
        compute_p(job, its, round);
      } else {
        arrive(shared_.keys_read);
        if (round == 0 && shared_.has_guessed_q()) {
          shared_.q_full.wait(0);
        }
        say_q_is_read();
      }
      add_values(its, round, tOrO);
      if (uniform(job.end_tile) == uniform(job.unit.end_tile)) {
        break;
      }
      shared_.round_done.wait(round & 1);
      sync_consumers();
      if (this_thread() == kProducerThreads) {
        set_round(job, job.end_tile);
      }
      sync_consumers();
    }
    finish(job, tOrO);
  }

 private:
  static constexpr int kColumns = kBlockDims / kConsumers;
  using Mma = Output<kColumns>::Mma;
  using Fragment = Output<kColumns>::Fragment;

  __device__ static int number() { return uniform(this_thread() / kWarpgroupThreads) - kProducers; }

  __device__ static int thread() { return this_thread() - kProducerThreads; }

  // The first warp finds the cluster's unit. The others ask for places in lists, and one thread for
  // Q, as the guess says.
  __device__ __forceinline__ void find(const CUtensorMap& map_q) const {
    constexpr int kWarp = 32;
    Job& job = shared_.job;
    const Unit& guessed = shared_.guessed;
    if (thread() < kWarp) {
      const int index = first_unit(launch_);
      const int part = index / launch_.items;
      if (launch_.is_packed) {
        find_rows(job.unit, p_, launch_, index - part * launch_.items, Finding::search);
      }
      find_keys(job.unit, p_, launch_, part, Finding::search);
      if (thread() == 0) {
        job.unit.index = job.unit.tokens > 0 ? index : launch_.units;
        set_round(job, job.unit.first_tile);
      }
      const bool is_guessed = shared_.has_guessed_tiles(p_);
      if (thread() == 0) {
        shared_.is_guessed = is_guessed && job.unit.tokens > 0;
      }
    } else {
      if (thread() == kWarp && shared_.has_guessed_q()) {
        load_q(shared_.p[0][0], shared_.q_full, guessed, launch_, map_q);
      }
      __syncwarp();
      dsv4::find_places<kConsumerThreads - kWarp>(
          job.places, p_, launch_, guessed, guessed.first_tile,
          min(guessed.first_tile + kRoundTiles, guessed.end_tile), thread() - kWarp,
          Sought::lists);
    }
    sync_consumers();
  }

  // Finds the places of the round's rows.
  __device__ __forceinline__ void find_places(int round) const {
    Job& job = shared_.job;
    const int first = uniform(job.first_tile);
    const int end = uniform(job.end_tile);
    const bool is_guessed = round == 0 && shared_.is_guessed;
    dsv4::find_places<kConsumerThreads>(job.places, p_, launch_, job.unit, first, end, thread(),
                                        is_guessed ? Sought::others : Sought::all);
    arrive(shared_.job_full);
    copy_sink(job, p_, launch_, thread());
    cute::cp_async_wait<0>();
    sync_consumers();
  }

  __device__ PairP& pair_in_memory(int round) const {
    auto* const pairs = reinterpret_cast<PairP*>(
        launch_.o +
        std::int64_t{launch_.first_pair_slot + shared_.job.unit.index * launch_.pair_slots} *
            (kRows * kDims / 4));
    return pairs[round % 2 * kSpreadBlocks + block_rank()];
  }

  __device__ void expect_p(const Round& its) const {
    for (int pair = 0; pair < its.pairs; ++pair) {
      shared_.p_full[pair].arrive_and_expect_tx(sizeof(PairP));
    }
  }

  // Consumer 0 says to the blocks that have pairs that Q has been read.
  __device__ void say_q_is_read() const {
    if (number() == 0 && threadIdx.x % 32 < kSpreadPairs) {
      shared_.p_free.arrive(threadIdx.x % 32);
    }
  }

  // P of the own pair, to all blocks.
  __device__ __forceinline__ void compute_p(const Job& job, const Round& its, int round) {
    const int own = number();
    const int tile = its.own_tile + own;
    const bool writes = threadIdx.x % 4 == 0;
    shared_.q_full.wait(round & 1);
    FragmentPv tSrS;
    if (tile < job.end_tile) {
      compute_scores(tSrS, round);
    } else {
      cute::fill(tSrS, float{kMinusInf});  // the pair has one tile
    }
    auto rS = by_rows<MmaQk>(tSrS);
    if (tile < job.end_tile) {
      mask(rS, job.unit, launch_.shape, tile_at(job.unit, tile),
           rows_that_exist(job.places.of[tile - job.first_tile]));
    }
    float max[kThreadRows];
    row_maxima<MmaQk>(rS, scale_to_log2(p_.scale), max);
    arrive(shared_.keys_read);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (writes) {
        shared_.max[own][row_of_thread(i)] = max[i];
      }
    }
    sync_consumers();
    say_q_is_read();
    PairP& pair = pair_in_memory(round);
    float reference[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      max[i] = fmaxf(max[i], shared_.max[1 - own][row_of_thread(i)]);
      reference[i] = ceilf(max[i]);
    }
    const TileSums sums =
        weigh<MmaQk>(rS, scale_to_log2(p_.scale), reference, PutInMemory{pair.p[own]});
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (writes) {
        __stcg(&pair.statistics[own][row_of_thread(i)],
               float4{reference[i], max[i], sums.exact[i], sums.rounded[i]});
      }
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");  // before TMA reads P
    sync_consumers();
    if (this_thread() == kProducerThreads + kWarpgroupThreads) {
      shared_.p_free.wait(round & 1);
      const int number = block_rank();
      multicast(number, shared_.p[number], pair.p, sizeof(pair.p));
      multicast(number, shared_.statistics[number], pair.statistics, sizeof(pair.statistics));
    }
  }

  // Brings bytes of memory to the same place of all blocks, whose barriers count them.
  __device__ void multicast(int pair, void* target, const void* source, std::uint32_t bytes) const {
    constexpr std::uint16_t kAllBlocks = (1u << kSpreadBlocks) - 1;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" ::"r"(cute::cast_smem_ptr_to_uint(target)),
        "l"(source), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(&shared_.p_full[pair])),
        "h"(kAllBlocks)
        : "memory");
  }

  // S of the own tile, as its quarters arrive.
  template <typename TensorS>
  __device__ __forceinline__ void compute_scores(TensorS& tSrS, int round) {
    const int own = number();
    Element* const sQ = shared_.p[0][0];
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      shared_.keys_full[own][quarter].wait(round & 1);
      cutlass::arch::fence_view_async_shared();  // WGMMA sees what the producers have stored
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        wgmma_issue_if(quarter + i > 0, MmaQk{}, operand_q(sQ + block * kBlock_elements),
                       operand_k(shared_.keys[own][block]), tSrS);
      }
    }
    wgmma_wait<0>(tSrS);
  }

  // Adds P V of the round's pairs to O, in their order. All are computed at once; behind the last
  // pair, of whatever lies there.
  __device__ __forceinline__ void add_values(const Round& its, int round, Fragment& tOrO) {
    Fragment tPv[kSpreadPairs];
    shared_.values_full.wait(round & 1);
#pragma unroll
    for (int pair = 0; pair < kSpreadPairs; ++pair) {
      if (pair < its.pairs) {
        shared_.p_full[pair].wait(round & 1);
      }
      if (pair == 0) {
        cutlass::arch::fence_view_async_shared();  // WGMMA sees what the producers have stored
      }
      compute_values(pair, tPv[pair]);
    }
    cute::for_each(cute::make_int_sequence<kSpreadPairs>{}, [&](auto pair) {
      wgmma_wait<kSpreadPairs - 1 - pair>(tPv[pair]);
      if (pair < its.pairs) {
        add_pair(pair, tPv[pair], tOrO);
      }
    });
  }

  // P V of a pair.
  __device__ __forceinline__ void compute_values(int pair, Fragment& tPv) {
    Element* const sP = shared_.p[pair][0];
    Element* const sV = shared_.keys[0][0] + pair * kPairTiles * kBlock_elements +
                        number() * kColumns;  // of a row's 64
    wgmma_issue<false>(Mma{}, operand_p(sP), operand_v(sV), tPv);
    wgmma_issue<true>(Mma{}, operand_p(sP + kBlock_elements), operand_v(sV + kBlock_elements), tPv);
  }

  // Adds it to O.
  __device__ __forceinline__ void add_pair(int pair, const Fragment& tPv, Fragment& tOrO) {
    const Appended row0(rows_[0], statistics_of(pair, 0));
    const Appended row1(rows_[1], statistics_of(pair, 1));
    if (some_change(row0, row1)) {
      change<Mma>(row0, row1, tOrO);
    }
    add<Mma>(row0, row1, tOrO, tPv);
    rows_[0] = row0.row;
    rows_[1] = row1.row;
  }

  __device__ RowSoFar statistics_of(int pair, int i) const {
    const int row = row_of_thread(i);
    const float4 first = shared_.statistics[pair][0][row];
    const float4 second = shared_.statistics[pair][1][row];
    return {.reference = first.x,
            .max = first.y,
            .sum = first.z + second.z,
            .rounded_sum = first.w + second.w};
  }

  // Stores the consumer's columns, or leaves them, and merges those of all parts.
  __device__ __forceinline__ void finish(const Job& job, Fragment& tOrO) {
    const Unit& unit = job.unit;
    const int column0 = block_rank() * kBlockDims + number() * kColumns;
    if (unit.parts > 1) {
      leave(launch_, unit.index, column0, tOrO);
      if (number() == 0) {
        leave_statistics(launch_, unit.index, rows_);  // for the blocks that merge these columns
      }
      const int item = unit.index - unit.part * launch_.items;
      if (!arrives_last(launch_, unit.parts, item * launch_.cluster + block_rank(),
                        shared_.ticket)) {
        return;
      }
      cute::clear(tOrO);
      rows_[0] = RowSoFar{};
      rows_[1] = RowSoFar{};
      append_slots<kColumns, 3>(launch_, item, unit.parts, launch_.items, column0, tOrO, rows_);
    }
    store_results<kColumns>(p_, launch_, job, column0, tOrO, rows_);
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  RowSoFar rows_[kThreadRows];
};

// Guesses the cluster's unit, before the launch ahead has ended. If q is not packed, its rows are
// what will be found. A warp calls it.
__device__ inline void guess(SpreadStorage& shared, const Params& p, const Launch& launch) {
  const int index = first_unit(launch);
  find_unit(shared.guessed, p, launch, index, Finding::guess);
  copy_unit(shared.job.unit, shared.guessed);
  if (threadIdx.x % 32 == 0) {
    shared.guessed.index = index;
  }
}

template <int kFormats>
__global__ void __launch_bounds__(kSpreadThreads, 1)
    dsv4_spread(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SpreadStorage*>(smem);
  if (threadIdx.x == 64) {
    shared.init();
  }
  let_next_launch_start();
  __syncthreads();
  cute::cluster_arrive();
  if (threadIdx.x / 32 == kProducerWarps) {
    guess(shared, p, launch);
  }
  __syncthreads();
  cute::cluster_wait();  // the other blocks' barriers are there
  if (threadIdx.x < kProducerThreads) {
    SpreadProducer<kFormats>(shared, p, launch).run();
  } else {
    SpreadConsumer(shared, p, launch).run(map_q);
  }
  // No block ends while others may write to its SMEM.
  cute::cluster_arrive_relaxed();
  cute::cluster_wait();
}

template <int kFormats>
void launch_spread(const Params& p, const Dsv4Details& details, Stream stream) {
  launch_with<dsv4_spread<kFormats>>(
      {.cluster = kSpreadBlocks, .may_start_early = true}, details.plan.blocks, kSpreadThreads,
      sizeof(SpreadStorage), stream, p, map_of_q(p, details.plan.shape), launch_of(p, details));
}

}  // namespace tilewright::cuda::dsv4
