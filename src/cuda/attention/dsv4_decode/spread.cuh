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
// SMEM      Q 64 KB and then P of five pairs, 80 KB; a pair of key tiles and then 64 columns of 16
//           tiles, 128 KB: 208 KB (+ 18 KB).
// Registers 120 for a thread of a producer, of which 64 hold its whole share of a key tile; 136 for
//           one of a consumer.
//
//   block j    producers   places | K of pair j | ... | V: columns 64 j to 64 j + 63 of all tiles
//              consumer 0  ........ S | softmax | P0 to memory | O += P V of pairs 0, 1, 2, ...
//              consumer 1  ........ S | softmax | P1 to memory | P of pair j to all blocks' SMEM
//
// A round is 16 tiles, a pair a block; an item without long parts has one. P goes through memory
// since TMA multicasts from there alone. A block asks for its multicast when all blocks have said
// that the place is free: Q's, when they have computed S; of pairs 5 to 7, when P V of pairs 0 to 2
// is done.
//
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kRoundTiles = kSpreadBlocks * kPairTiles;
inline constexpr int kPlaces = kSpreadPairs;  // in SMEM, of P
static_assert(kSpreadBlocks == kBlocks, "a block has one column block of O");
static_assert(kRoundTiles <= kStretchTiles);

// P of a pair in memory, as it lies in SMEM. Where the pair has one tile, the other's P is 0.
struct PairP {
  Element p[kPairTiles][kBlock_elements];
  float4 statistics[kPairTiles][kRows];  // the pair's reference and maximum, the tile's two sums
};
static_assert(2 * kSpreadBlocks * sizeof(PairP) <= kSpreadSlots * kRows * kDims * sizeof(float));

struct SpreadStorage {
  alignas(1024) Element p[kPlaces][kPairTiles][kBlock_elements];  // Q's blocks before
  alignas(1024) Element keys[kPairTiles][kBlocks][kBlock_elements];
  float4 statistics[kPlaces][kPairTiles][kRows];
  float max[kPairTiles][kRows];  // of the own pair's scores
  Job job;                       // of a round
  Unit rehearsed;                // which nobody reads
  alignas(16) RowAt located[kPairTiles][kTileKeys];
  int ticket;
  TmaBarrier q_full;
  TmaBarrier p_full[kSpreadBlocks];
  cutlass::arch::ClusterBarrier p_free;  // in all blocks: the place for the own pair's P
  cutlass::arch::ClusterBarrier keys_full[kPairTiles][kQuarters];
  cutlass::arch::ClusterBarrier keys_read;
  cutlass::arch::ClusterBarrier values_full[kRoundTiles];
  cutlass::arch::ClusterBarrier job_full;
  cutlass::arch::ClusterBarrier job_done;

  __device__ void init() {
    q_full.init(1);
    for (auto& full : p_full) {
      full.init(1);
    }
    p_free.init(kSpreadBlocks * kConsumerWarps);
    for (auto& tile : keys_full) {
      for (auto& full : tile) {
        full.init(kTileWarps);
      }
    }
    keys_read.init(kConsumers * kConsumerWarps);
    for (auto& full : values_full) {
      full.init(kTileWarps);
    }
    job_full.init(kProducerWarps);
    job_done.init(kConsumers * kConsumerWarps);
    cutlass::arch::fence_barrier_init();
  }
};
static_assert(sizeof(SpreadStorage) <= 227 * 1024);

// The block's own pair of a round, and how many pairs there are.
struct Round {
  int tiles;
  int pairs;
  bool has_own;
  int own_tile;  // the own pair's first, of the item

  __device__ explicit Round(const Job& job)
      : tiles(uniform(job.end_tile - job.first_tile)),
        pairs(pairs_of_tiles(tiles)),
        has_own(block_rank() < pairs),
        own_tile(uniform(job.first_tile) + block_rank() * kPairTiles) {}
};

// Where a producer puts its tile of the own pair. The place is free.
struct OwnTile {
  SpreadStorage& shared;

  __device__ cutlass::arch::ClusterBarrier& full(int quarter) const {
    return shared.keys_full[KeyTile::number()][quarter];
  }
  __device__ static void wait(int, int) {}
};

// The producers: two warpgroups, of which each has every second tile.
template <int kFormats>
class SpreadProducer {
 public:
  __device__ SpreadProducer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run(const CUtensorMap& map_q) {
    Job& job = shared_.job;
    find(job);
    wait_for_launch_before();
    if (uniform(job.unit.index) >= launch_.units) {
      arrive(shared_.job_full);
      return;
    }
    copy_sink(job, p_, launch_);
    for (int round = 0;; ++round) {
      const int first = uniform(job.first_tile);
      const int end = uniform(job.end_tile);
      ask_for_places<kProducerThreads>(job.places, p_, launch_, job.unit, first, end);
      const Round its(job);
      if (this_thread() == kWarpgroupThreads && its.has_own) {
        load_q(shared_.p[0][0], shared_.q_full, job.unit, launch_, map_q);
      }
      __syncwarp();
      check_places<kProducerThreads>(job.places, p_, launch_, job.unit, first, end);
      sync_producers();  // the places are there
      arrive(shared_.job_full);
      if (its.has_own) {
        bring_keys(its.own_tile + KeyTile::number(), end);
      }
      bring_values(first + KeyTile::number(), end, round);
      if (end == uniform(job.unit.end_tile)) {
        return;
      }
      shared_.job_done.wait(round & 1);
      sync_producers();
      if (this_thread() == 0) {
        set_round(job, end);
      }
      sync_producers();
    }
  }

 private:
  __device__ static void set_round(Job& job, int first_tile) {
    job.first_tile = first_tile;
    job.end_tile = min(first_tile + kRoundTiles, job.unit.end_tile);
  }

  // Finds the cluster's unit, as Producer::find() does.
  __device__ void find(Job& job) const {
    const int warp = this_thread() / 32;
    const bool is_rehearsal = warp == 1;
    if (warp <= 1) {
      find_unit_behind(is_rehearsal ? shared_.rehearsed : job.unit, p_, launch_,
                       first_unit(launch_) - unit_step(launch_), is_rehearsal);
    }
    if (this_thread() == 0) {
      set_round(job, job.unit.first_tile);
    }
    sync_producers();
  }

  __device__ LanePlace place(int tile) const {
    return LanePlace(shared_.keys[0][0] + tile * kBlocks * kBlock_elements);
  }

  // K: this producer's tile of the own pair.
  __device__ __forceinline__ void bring_keys(int tile, int end) const {
    if (tile >= end) {
      return;
    }
    const OwnTile to{shared_};
    with_format<kFormats>(
        format_of<kFormats>(p_, tile_at(shared_.job.unit, tile).source), [&](auto format) {
          using ItsLane = Lane<format.value>;
          const ItsLane lane(p_, launch_, shared_.job);
          RowAt* const located = shared_.located[KeyTile::number()];
          lane.locate(tile, end, located, false);
          const auto rows = lane.take(located);
          if constexpr (format.value == KvRowFormat::bf16) {
            copy_keys(to, rows);
          } else {
            HeldQuarters<ItsLane, kQuarters> held;
            held.begin(rows);
            if constexpr (requires { rows.scales[0].rest(0); }) {
              if (__any_sync(0xffffffffu,
                             rows.scales[0].some_exceed() || rows.scales[1].some_exceed())) {
                widen_exceeding<ItsLane>(to, place(KeyTile::number()), rows, 0);
                return;
              }
            }
            held.run(to, place(KeyTile::number()), rows, 0, [] {});
          }
        });
  }

  __device__ __forceinline__ void copy_keys(const OwnTile& to,
                                            const Lane<KvRowFormat::bf16>::Rows& rows) const {
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
#pragma unroll
      for (int i = 0; i < kPasses * kConsumers; ++i) {
        Lane<KvRowFormat::bf16>::copy(place(KeyTile::number()), i / kConsumers,
                                      block_of_quarter(quarter, i % kConsumers), rows);
      }
      cute::cp_async_fence();
    }
    cute::cp_async_wait<3>();
    arrive(to.full(0));
    cute::cp_async_wait<2>();
    arrive(to.full(1));
    cute::cp_async_wait<1>();
    arrive(to.full(2));
    cute::cp_async_wait<0>();
    arrive(to.full(3));
  }

  // V: the block's columns of every second tile from `tile` on, of whole pairs: of a tile that does
  // not exist, zeros. The first ones are loaded while the consumers still read K.
  __device__ __forceinline__ void bring_values(int tile, int end, int round) const {
    constexpr bool kHasOne = kDsv4Formats[kFormats].has_one();
    const int tiles = pairs_of_tiles(end - shared_.job.first_tile) * kPairTiles;
    const int whole_end = shared_.job.first_tile + tiles;
    bool is_first = true;
#pragma unroll 1
    for (int next = tile; next < whole_end;) {
      const int run = kHasOne ? whole_end : min(next + kPairTiles, whole_end);
      with_format<kFormats>(
          format_of<kFormats>(p_, tile_at(shared_.job.unit, min(next, end - 1)).source),
          [&](auto format) {
            const Lane<format.value> lane(p_, launch_, shared_.job);
            bring_columns<kHasOne ? 5 : 1>(lane, next, run, is_first, round);
          });
    }
    if (is_first) {
      shared_.keys_read.wait(round & 1);
    }
  }

  // Are the last group's values BF16, and those of the others not?
  template <typename Lane>
  static constexpr bool kLastIsApart = Lane::kLastIsBf16&& Lane::kFormat != KvRowFormat::bf16;

  // The same of tiles of one format, kBatch at once.
  template <int kBatch, typename Lane>
  __device__ __forceinline__ void bring_columns(const Lane& lane, int& tile, int end,
                                                bool& is_first, int round) const {
    const int block = block_rank();
    RowAt* const located = shared_.located[KeyTile::number()];
#pragma unroll 1
    for (; tile < end; tile += kBatch * kPairTiles) {
      typename Lane::Rows rows[kBatch];
      typename Lane::Raw raw[kBatch][kPasses];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        lane.locate(tile + i * kPairTiles, shared_.job.end_tile, located, false);
        rows[i] = lane.take(located);
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          raw[i][pass] = Lane::load(rows[i], pass, block);
        }
      }
      if (is_first) {
        shared_.keys_read.wait(round & 1);
        is_first = false;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int its = tile + i * kPairTiles;
        if (its < end) {
          const int number = its - shared_.job.first_tile;
#pragma unroll
          for (int pass = 0; pass < kPasses; ++pass) {
            LanePlace(shared_.keys[0][0])
                .store(number, pass, values_of<Lane>(raw[i][pass], rows[i], pass, block));
          }
          arrive(shared_.values_full[number]);
        }
      }
    }
  }

  template <typename Lane>
  __device__ __forceinline__ static SixteenValues values_of(const typename Lane::Raw& raw,
                                                            const typename Lane::Rows& rows,
                                                            int pass, int group) {
    if constexpr (kLastIsApart<Lane>) {
      if (group == kGroups - 1) {
        return {raw.low, Lane::load(rows, pass, kGroups).low};
      }
    }
    SixteenValues values = Lane::F::widen(raw, group, rows.scales[pass]);
    if constexpr (requires { rows.scales[0].rest(0); }) {
      values.multiply(rows.scales[pass].rest(group));
    }
    return values;
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
};

// A consumer. Both compute S of one tile of the own pair; the first one has the block's O.
class SpreadConsumer {
 public:
  __device__ SpreadConsumer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run() {
    const Job& job = shared_.job;
    typename Output<kBlockDims>::Fragment tOrO;
    cute::clear(tOrO);
    cute::cluster_wait();  // the other blocks' barriers are there
    for (int round = 0;; ++round) {
      shared_.job_full.wait(round & 1);
      if (uniform(job.unit.index) >= launch_.units) {
        return;
      }
      const Round its(job);
      if (this_thread() == kProducerThreads) {
        expect_p(its);
      }
      if (its.has_own) {
        compute_p(job, its, round);
      } else {
        arrive(shared_.keys_read);
        say_q_is_read();
      }
      if (number() == 0) {
        add_values(its, round, tOrO);
      }
      const bool is_last = uniform(job.end_tile) == uniform(job.unit.end_tile);
      arrive(shared_.job_done);
      if (is_last) {
        break;
      }
    }
    wait_for_launch_before();
    finish(job, tOrO);
  }

 private:
  __device__ static int number() { return uniform(this_thread() / kWarpgroupThreads) - kProducers; }

  __device__ PairP& pair_in_memory(int round) const {
    auto* const pairs = reinterpret_cast<PairP*>(
        launch_.o +
        std::int64_t{launch_.first_pair_slot + shared_.job.unit.index * launch_.pair_slots} *
            (kRows * kDims / 4));
    return pairs[round % 2 * kSpreadBlocks + block_rank()];
  }

  // A pair has its place in SMEM by its number in the round.
  __device__ void expect_p(const Round& its) const {
    for (int pair = 0; pair < its.pairs; ++pair) {
      shared_.p_full[pair].arrive_and_expect_tx(sizeof(PairP));
    }
  }

  // Consumer 0 says to the block whose pair has the place next that P or Q there has been read.
  __device__ void say_place_is_free(int pair) const {
    if (threadIdx.x % 32 == 0) {
      shared_.p_free.arrive(pair);
    }
  }
  __device__ void say_q_is_read() const {
    if (number() == 0 && threadIdx.x % 32 < kPlaces) {
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
      const int place = number % kPlaces;
      multicast(number, shared_.p[place], pair.p, sizeof(pair.p));
      multicast(number, shared_.statistics[place], pair.statistics, sizeof(pair.statistics));
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

  // Adds P V of the round's pairs to O, in their order. Two are computed at once; behind the last
  // one, of whatever lies there.
  template <typename TensorO>
  __device__ __forceinline__ void add_values(const Round& its, int round, TensorO& tOrO) {
#pragma unroll 1
    for (int pair = 0; pair < its.pairs; pair += 2) {
      FragmentPv even;
      FragmentPv odd;
      wait_for_operands(its, pair, round);
      compute_values(pair, even);
      wait_for_operands(its, pair + 1, round);
      compute_values(pair + 1, odd);
      wgmma_wait<1>(even);
      add_pair(its, pair, even, tOrO);
      wgmma_wait<0>(odd);
      if (pair + 1 < its.pairs) {
        add_pair(its, pair + 1, odd, tOrO);
      }
    }
  }

  __device__ __forceinline__ void wait_for_operands(const Round& its, int pair, int round) {
    if (pair < its.pairs) {
      shared_.values_full[pair * kPairTiles].wait(round & 1);
      shared_.values_full[pair * kPairTiles + 1].wait(round & 1);
      shared_.p_full[pair].wait(round & 1);
      cutlass::arch::fence_view_async_shared();  // WGMMA sees what the producers have stored
    }
  }

  // P V of a pair.
  __device__ __forceinline__ void compute_values(int pair, FragmentPv& tPv) {
    Element* const sP = shared_.p[pair % kPlaces][0];
    Element* const sV = shared_.keys[0][0] + pair % kSpreadBlocks * kPairTiles * kBlock_elements;
    wgmma_issue<false>(MmaPv{}, operand_p(sP), operand_v(sV), tPv);
    wgmma_issue<true>(MmaPv{}, operand_p(sP + kBlock_elements), operand_v(sV + kBlock_elements),
                      tPv);
  }

  // Adds it to O, and gives its place back.
  template <typename TensorO>
  __device__ __forceinline__ void add_pair(const Round& its, int pair, const FragmentPv& tPv,
                                           TensorO& tOrO) {
    const int place = pair % kPlaces;
    const Appended row0(rows_[0], statistics_of(place, 0));
    const Appended row1(rows_[1], statistics_of(place, 1));
    if (pair + kPlaces < its.pairs) {
      __syncwarp();
      say_place_is_free(pair + kPlaces);
    }
    if (some_change(row0, row1)) {
      change<MmaPv>(row0, row1, tOrO);
    }
    add<MmaPv>(row0, row1, tOrO, tPv);
    rows_[0] = row0.row;
    rows_[1] = row1.row;
  }

  __device__ RowSoFar statistics_of(int place, int i) const {
    const int row = row_of_thread(i);
    const float4 first = shared_.statistics[place][0][row];
    const float4 second = shared_.statistics[place][1][row];
    return {.reference = first.x,
            .max = first.y,
            .sum = first.z + second.z,
            .rounded_sum = first.w + second.w};
  }

  // Stores the block's columns, or leaves them, and merges those of all parts: each consumer a
  // half.
  template <typename TensorO>
  __device__ __forceinline__ void finish(const Job& job, TensorO& tOrO) {
    const Unit& unit = job.unit;
    const int column0 = block_rank() * kBlockDims;
    if (unit.parts == 1) {
      if (number() == 0) {
        store_results<kBlockDims>(p_, launch_, job, column0, tOrO, rows_);
      }
      return;
    }
    if (number() == 0) {
      leave(launch_, unit.index, column0, tOrO);
      leave_statistics(launch_, unit.index, rows_);  // for the blocks that merge these columns
    }
    const int item = unit.index - unit.part * launch_.items;
    if (!arrives_last(launch_, unit.parts, item * launch_.cluster + block_rank(), shared_.ticket)) {
      return;
    }
    constexpr int kHalf = kBlockDims / 2;
    const int its_column0 = column0 + number() * kHalf;
    typename Output<kHalf>::Fragment tHalf;
    cute::clear(tHalf);
    rows_[0] = RowSoFar{};
    rows_[1] = RowSoFar{};
    append_slots<kHalf, 3>(launch_, item, unit.parts, launch_.items, its_column0, tHalf, rows_);
    store_results<kHalf>(p_, launch_, job, its_column0, tHalf, rows_);
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  RowSoFar rows_[kThreadRows];
};

inline constexpr int kSpreadThreads = kProducerThreads + kConsumerThreads;

template <int kFormats>
__global__ void __launch_bounds__(kSpreadThreads, 1)
    dsv4_spread(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SpreadStorage*>(smem);
  if (threadIdx.x == 0) {
    shared.init();
  }
  let_next_launch_start();
  __syncthreads();
  cute::cluster_arrive();
  if (threadIdx.x < kProducerThreads) {
    cutlass::arch::warpgroup_reg_dealloc<120>();
    SpreadProducer<kFormats>(shared, p, launch).run(map_q);
    cute::cluster_wait();
  } else {
    cutlass::arch::warpgroup_reg_alloc<136>();
    SpreadConsumer(shared, p, launch).run();
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
