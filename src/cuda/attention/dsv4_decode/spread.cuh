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
// Registers 136 for a thread of a producer, of which 48 hold its share of K and then 50 that of V;
//           120 for one of a consumer, of which 80 hold P V of five pairs.
//
//   block j   consumers   rows of all tiles | K: half of pair j | S | P to memory, to blocks | O
//             producers   copy pair j | K: its other half | V: columns 64 j to 64 j + 63 | factors
//
// - Guess. A list's length, its entries and its rows would be memory's latency three times. So a
//   warp guesses, before the launch ahead has ended, that there are as many keys as there may be.
//   By that places are looked up, pair j is copied, and Q is loaded, while another warp finds the
//   unit. Where the guess was wrong, all that is done again.
// - K. TMA copies whole rows to the place of their key tile. Sixteen warps take eight of them each
//   to registers, and put them back widened, quarter by quarter; S begins with the first quarter.
//   Of a consumer's rows, a producer widens the last column block.
// - P. It goes through memory since TMA multicasts from there alone. A consumer multicasts P of its
//   tile when all blocks have said that its place is free, where Q and the places of rows were.
// - O. Each consumer has half of the block's columns. The pairs' statistics, and the factors of O
//   and of each pair's P V that follow, are what two warps of the producers compute meanwhile.
//
// A round is ten tiles, a pair for each of five blocks. The plan chooses this kernel for parts of
// one round, but any part is right.
//
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/spread_produce.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

// A consumer. It widens half of a tile's rows of the own pair, computes S and P of the tile, and
// has half of the block's columns.
template <int kFormats>
class SpreadConsumer {
 public:
  __device__ SpreadConsumer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared),
        p_(p),
        launch_(launch),
        number_(uniform(this_thread() / kWarpgroupThreads) - kProducers) {}

  __device__ __forceinline__ void run(const CUtensorMap& map_q) {
    const Unit& unit = shared_.unit;
    Fragment tOrO;
    cute::clear(tOrO);
    for (int round = 0;; ++round) {
      const bool has_guessed_q = round == 0 && shared_.guesses_pair();
#pragma unroll 1
      for (bool is_guess = round == 0; !find(is_guess, map_q); is_guess = false) {
      }
      if (uniform(unit.index) >= launch_.units) {
        if (has_guessed_q) {
          shared_.q_full.wait(0);
        }
        return;
      }
      arrive(shared_.rows_full);
      const Round its(shared_);
      if (thread() == 0) {
        expect_p(its);
        if (its.has_own && !has_guessed_q) {
          load_q<kRows>(shared_.p[0][0], shared_.q_full, unit, launch_, map_q);
        }
      }
      __syncwarp();
      if (its.has_own) {
        compute_p(its, round);
      } else {
        if (has_guessed_q) {
          shared_.q_full.wait(0);
        }
        arrive(shared_.keys_read);
      }
      add_values(its, round, tOrO);
      if (its.first_tile + its.tiles == uniform(unit.end_tile)) {
        break;
      }
      shared_.round_done.wait(round & 1);
      sync_consumers();
      if (thread() == 0) {
        shared_.set_round(shared_.end_tile);
      }
      sync_consumers();
    }
    finish(tOrO);
  }

 private:
  static constexpr int kWarps = kConsumers * kConsumerWarps;
  static constexpr int kColumns = kBlockDims / kConsumers;
  using Mma = Output<kColumns>::Mma;
  using Fragment = Output<kColumns>::Fragment;

  __device__ static int thread() { return this_thread() - kProducerThreads; }
  __device__ static int warp() { return uniform(thread() / 32); }

  // Finds the round's rows. By the guess, the producers find those of the own pair, the first warp
  // finds the unit before its rows, and one thread asks for Q. Returns whether the rows are those
  // that are wanted: if not, they are found again.
  __device__ __forceinline__ bool find(bool is_guess, const CUtensorMap& map_q) const {
    const bool has_guessed_pair = is_guess && shared_.guesses_pair();
    const Unit& unit = is_guess ? shared_.guessed : shared_.unit;
    RowFinder<kFormats, kWarps> finder(shared_, p_, launch_, unit, warp(), has_guessed_pair);
    finder.begin(uniform(is_guess ? unit.first_tile : shared_.first_tile),
                 uniform(is_guess ? unit.end_tile : shared_.end_tile));
    wait_for_launch_before();
    if (is_guess && warp() == 0) {
      find_unit(shared_, p_, launch_);
      arrive(shared_.unit_found);
    }
    if (has_guessed_pair && warp() == 1 && this_thread() % 32 == 0) {
      load_q<kRows>(shared_.p[0][0], shared_.q_full, unit, launch_, map_q);
    }
    __syncwarp();
    finder.find(is_guess);
    if (is_guess) {
      shared_.own_found.wait(0);
    }
    sync_consumers();
    shared_.wait_for_wrong_copies();
    return !is_guess || shared_.is_guess_right || uniform(shared_.unit.index) >= launch_.units;
  }

  __device__ PairP& pair_in_memory(int round) const {
    auto* const pairs = reinterpret_cast<PairP*>(
        launch_.o + std::int64_t{launch_.shared_slot(shared_.unit.index)} * (kRows * kDims / 4));
    return pairs[round % 2 * kSpreadBlocks + block_rank()];
  }

  __device__ void expect_p(const Round& its) const {
    for (int pair = 0; pair < its.pairs; ++pair) {
      shared_.p_full[pair].arrive_and_expect_tx(kPairTiles *
                                                (p_bytes() + sizeof(PairP::statistics[0])));
    }
  }

  // What is multicast of P of a tile: the rows that an item may have, behind each other.
  __device__ std::uint32_t p_bytes() const {
    return rows_of(launch_.shape) * kBlockDims * sizeof(Element);
  }

  // P of the own pair, to all blocks.
  __device__ __forceinline__ void compute_p(const Round& its, int round) {
    const int own = number_;
    const int tile = Round::number(own);
    const bool writes = threadIdx.x % 4 == 0;
    FragmentPv tSrS;
    if (tile < its.tiles) {
      with_format<kFormats>(format_of<kFormats>(p_, its.tile(shared_, own).source),
                            [&](auto format) { compute_scores<format.value>(tSrS, round); });
    } else {
      cute::fill(tSrS, float{kMinusInf});  // the pair has one tile
    }
    auto rS = by_rows<MmaQk>(tSrS);
    if (tile < its.tiles) {
      const auto& halves = shared_.exist[tile];
      const std::uint64_t exist = std::uint64_t{halves[1]} << 32 | halves[0];
      if (!sees_all_of_tile(shared_.unit, exist)) {
        mask(rS, shared_.unit, launch_.shape, its.tile(shared_, own), exist);
      }
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
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, kConsumerSync + own);
    if (this_thread() % kWarpgroupThreads == 0) {
      shared_.p_free.wait(round & 1);
      const int number = block_rank();
      multicast(number, shared_.p[number][own], pair.p[own], p_bytes());
      multicast(number, shared_.statistics[number][own], pair.statistics[own],
                sizeof(pair.statistics[own]));
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

  // S of the own tile, quarter by quarter. While one is computed, this warp's rows of the next one
  // are widened.
  template <KvRowFormat kFormat, typename TensorS>
  __device__ __forceinline__ void compute_scores(TensorS& tSrS, int round) {
    const int own = number_;
    Element* const sQ = shared_.p[0][0];
    KeyRows<kFormat, kConsumerBlocks> rows(shared_, own, first_key(this_thread()) + kPassKeys);
    rows.ask(round);
    rows.read(round);
    if constexpr (kFormat != KvRowFormat::bf16) {
      sync_tile(own);
    }
    rows.store_exceeding(round);
    shared_.q_full.wait(round & 1);
    cute::for_each(cute::make_int_sequence<kQuarters>{}, [&](auto quarter) {
      rows.template store<quarter>();
      arrive(shared_.keys_full[own][quarter]);
      shared_.keys_full[own][quarter].wait(round & 1);
      cutlass::arch::fence_view_async_shared();  // WGMMA sees what has been stored
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        wgmma_issue_if(quarter + i > 0, MmaQk{}, operand_q(sQ + block * kBlock_elements),
                       operand_k(shared_.keys[own][block]), tSrS);
      }
    });
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
    shared_.factors_full.wait(round & 1);
    constexpr int kMostGroups = 7;  // that a wait leaves
    cute::for_each(cute::make_int_sequence<kSpreadPairs>{}, [&](auto pair) {
      wgmma_wait<std::min(kMostGroups, kPairTiles * (kSpreadPairs - 1 - pair))>(tPv[pair]);
      if (pair < its.pairs) {
        add_pair(pair, tPv[pair], tOrO);
      }
    });
  }

  // P V of a pair.
  __device__ __forceinline__ void compute_values(int pair, Fragment& tPv) {
    Element* const sP = shared_.p[pair][0];
    Element* const sV = shared_.keys[0][0] + pair * kPairTiles * kBlock_elements +
                        number_ * kColumns;  // of a row's 64
    wgmma_issue<false>(Mma{}, operand_p(sP), operand_v(sV), tPv);
    wgmma_issue<true>(Mma{}, operand_p(sP + kBlock_elements), operand_v(sV + kBlock_elements), tPv);
  }

  // Adds it to O.
  __device__ __forceinline__ void add_pair(int pair, const Fragment& tPv, Fragment& tOrO) {
    const float2 row0 = shared_.factors[pair][row_of_thread(0)];
    const float2 row1 = shared_.factors[pair][row_of_thread(1)];
    if (some_change(row0.x, row1.x)) {
      change<Mma>(row0.x, row1.x, tOrO);
    }
    add<Mma>(row0.y, row1.y, tOrO, tPv);
  }

  // Stores the consumer's columns, or leaves them.
  __device__ __forceinline__ void finish(Fragment& tOrO) {
    const Unit& unit = shared_.unit;
    const int column0 = block_rank() * kBlockDims + number_ * kColumns;
    shared_.ends_full.wait(0);
    if (unit.parts == 1) {
      auto rO = by_rows<Mma>(tOrO);
      store_columns<0>(column0, rO);
      store_columns<1>(column0, rO);
      return;
    }
    leave(launch_, unit.index, column0, tOrO);
  }

  template <int kRow, typename TensorO>
  __device__ __forceinline__ void store_columns(int column0, TensorO& rO) const {
    const int row = row_of_thread(kRow);
    dsv4::store_columns<kColumns, kRow>(p_, shared_.unit, column0, rO,
                                        row_of(shared_.unit, launch_.shape, row),
                                        shared_.end_factors[row]);
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  const int number_;  // 0 or 1
};

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
    guess_unit(shared, p, launch);
  }
  __syncthreads();
  cute::cluster_wait();  // the other blocks' barriers are there
  if (threadIdx.x < kProducerThreads) {
    cutlass::arch::warpgroup_reg_alloc<136>();
    SpreadProducer<kFormats>(shared, p, launch).run();
  } else {
    cutlass::arch::warpgroup_reg_dealloc<120>();
    SpreadConsumer<kFormats>(shared, p, launch).run(map_q);
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
