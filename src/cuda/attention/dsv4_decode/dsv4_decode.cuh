// DeepSeek-V4's attention, one to eight new tokens a request (kernel dsv4_decode).
//
// K and V are one tensor: a key tile in SMEM is K for Q K^T and V for P V. Rows of the caches, of
// four formats, are widened to BF16 on their way there, by the producers' own loads: each row goes
// through registers once. Key tiles come in pairs. Each consumer computes the scores of one tile of
// the pair, and half of O's columns over both.
//
// Source    DeepSeek-V4 technical report, section 2.3; the division of labour between two consumers
//           is that of FlashMLA's description.
// Tiles     64 rows ((token, head) pairs), 64 keys, 512 dims; 512 threads; one block an SM.
// SMEM      Q 64 KB, a pair of key tiles 128 KB, P of both 16 KB: 208 KB (+ 15 KB).
// Registers 192 for a thread of a consumer, of which 128 hold O, and 32 S or P V of 64 columns;
//           64 for one of a producer, of which 32 hold rows on their way.
//
//   producer 0   K0: quarters 0 1 2 3 | wait for each: K2 | ...
//   producer 1   K1: quarters 0 1 2 3 | wait for each: K3 | ...
//   consumer 0   S = Q K0^T | maxima | P0 | sync | 4 x: O_L += (P0 P1) (V0 V1) | S = Q K2^T | ...
//   consumer 1   S = Q K1^T | maxima | P1 | sync | 4 x: O_R += (P0 P1) (V0 V1) | S = Q K3^T | ...
//
// What P V of a pair gives is added to O by FMAs, under O's reference so far (softmax.cuh). So the
// pairs of a unit can be computed in any blocks. Where units are too few for a round of all blocks,
// several share each: the first one merges its own pairs, the others leave the results of each pair
// in the workspace. Then the blocks of a cluster, or another launch (merge.cu), merge all that in
// the pairs' order. The bits are the same. Where there are few pairs, spread.cuh has another way.
//
// Where a token has more than 64 heads and no cluster shares a unit, in kernels without BF16 rows,
// two blocks of a cluster are twins: each widens half of the rows of both (twin_produce.cuh).
//
// Limits    BF16 q. A NaN code of E4M3 under a scale that is not NaN counts as 480.
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/attention/dsv4_decode/twin_produce.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kThreads = kProducerThreads + kConsumerThreads;

struct SharedStorage {
  alignas(1024) Element sQ[kBlocks][kBlock_elements];
  Keys keys;
  alignas(1024) Element sP[kPairTiles][kBlock_elements];
  TileRows rows[kPairTiles];  // of P
  Job jobs[kJobs];
  Unit rehearsed;  // which nobody reads
  TmaBarrier q_full;
  cutlass::arch::ClusterBarrier q_empty;
  cutlass::arch::ClusterBarrier job_full[kJobs];
  cutlass::arch::ClusterBarrier job_empty[kJobs];

  __device__ void init(bool is_twin) {
    q_full.init(1);
    q_empty.init(kConsumers * kConsumerWarps);
    keys.init(is_twin ? kTwins : 1);
    for (int place = 0; place < kJobs; ++place) {
      job_full[place].init(kProducerWarps);
      job_empty[place].init(kConsumers * kConsumerWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
};
static_assert(sizeof(SharedStorage) <= 227 * 1024);

// The producers: they find the block's jobs and load their keys.
template <int kFormats, bool kIsTwin>
class Producer {
 public:
  __device__ Producer(SharedStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run(const CUtensorMap& map_q) {
    arrive(shared_.job_full[JobAt(0).place]);
    Job* job = &shared_.jobs[JobAt(1).place];
    int number = 1;
    for (;;) {
      const JobAt at(number);
      shared_.job_empty[at.place].wait(at.phase ^ 1);
      find(*job, shared_.jobs[(at.place + 1) % kJobs], number);
      wait_for_launch_before();
      if (uniform(job->unit.index) >= launch_.units) {
        arrive(shared_.job_full[at.place]);
        return;
      }
      ask_for_places<kProducerThreads>(job->places, p_, launch_, job->unit,
                                       uniform(job->first_tile), uniform(job->end_tile));
      copy_sink(*job, p_, launch_);
      // Q comes behind the places in memory's queue, since everything waits for those.
      if (this_thread() == kWarpgroupThreads && job->is_first && job->first_tile < job->end_tile) {
        shared_.q_empty.wait(job->q_loads & 1);
        load_q(shared_.sQ[0], shared_.q_full, job->unit, launch_, map_q);
      }
      __syncwarp();
      check_places<kProducerThreads>(job->places, p_, launch_, job->unit, uniform(job->first_tile),
                                     uniform(job->end_tile));
      sync_producers();  // the places are there
      arrive(shared_.job_full[at.place]);
      if constexpr (kIsTwin) {
        produce_for_twins<kFormats>(KeyTile{shared_.keys}, p_, launch_, *job);
      } else {
        produce<kFormats>(KeyTile{shared_.keys}, p_, launch_, *job);
      }
      number = uniform(job->number) + 1;
      job = &shared_.jobs[JobAt(number).place];
    }
  }

 private:
  // Finds the block's next job: a stretch of its share of the next unit, or of that of the job
  // before. All producers call it: warp 0 does it, and warp 1 executes the same code ahead of it
  // while the launch before may still run, which brings that to the SM's instruction caches.
  __device__ void find(Job& job, const Job& before, int number) const {
    const int warp = this_thread() / 32;
    const bool is_rehearsal = warp == 1;
    const bool is_first = before.is_last;
    if (is_first && (warp == 0 || (is_rehearsal && number == 1))) {
      find_unit_behind(is_rehearsal ? shared_.rehearsed : job.unit, p_, launch_, before.unit.index,
                       is_rehearsal ? Finding::rehearsal : Finding::search);
    }
    if (warp == 0) {
      if (!is_first) {
        copy_unit(job.unit, before.unit);
      }
      __syncwarp();
      if (this_thread() == 0) {
        job.number = number;
        job.is_first = is_first;
        share(job, launch_);
        if (!is_first) {
          job.first_tile = before.end_tile;
        }
        job.end_tile = min(job.first_tile + kStretchTiles, job.share_end);
        job.is_last = job.end_tile == job.share_end;
        job.first_pair = before.end_pair;
        job.end_pair = job.first_pair + pairs_of_tiles(job.end_tile - job.first_tile);
        job.q_loads = before.q_loads + (is_first && job.first_tile < job.end_tile);
      }
    }
    sync_producers();
  }

  SharedStorage& shared_;
  const Params& p_;
  const Launch& launch_;
};

// A consumer: the first or the second, by its threads.
template <bool kIsTwin>
class Consumer {
 public:
  __device__ Consumer(SharedStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run() {
    FragmentO tOrO[2];  // output blocks number() and number() + 2
    for (int count = 0;; ++count) {
      if (count == 1) {
        wait_for_launch_before();
      }
      const Job* job = &next_job(count);
      if (uniform(job->unit.index) >= launch_.units) {
        return;
      }
      begin(tOrO[0]);
      begin(tOrO[1]);
#pragma unroll 1
      for (;;) {
        run_pairs(*job, tOrO);
        if (job->is_last) {
          break;
        }
        arrive(shared_.job_empty[JobAt(count).place]);
        job = &next_job(++count);
      }
      finish(*job, tOrO);
      arrive(shared_.job_empty[JobAt(count).place]);
    }
  }

 private:
  // What lies in one register, since there is no other: as numbers modulo 2, the tiles whose scores
  // this consumer has computed, and the units that had keys here; and whether the block leaves the
  // results of each pair of the unit.
  enum State : std::uint32_t { kOddTile = 1, kOddUnit = 2, kLeavesPairs = 4 };
  __device__ bool leaves_pairs() const { return (state_ & kLeavesPairs) != 0; }

  // 0 or 1. It is found where it is needed: what follows from it, descriptors above all, is in no
  // register meanwhile.
  __device__ static int number() { return uniform(this_thread() / kWarpgroupThreads) - kProducers; }

  // Waits for the block's job `count`.
  __device__ const Job& next_job(int count) {
    const JobAt at(count);
    shared_.job_full[at.place].wait(at.phase);
    return shared_.jobs[at.place];
  }

  __device__ __forceinline__ void run_pairs(const Job& job, FragmentO (&tOrO)[2]) {
    const int end = uniform(job.end_tile);
    int tile = uniform(job.first_tile);
    if (job.is_first) {
      state_ = (state_ & ~kLeavesPairs) | (uniform(job.share) > 0 ? kLeavesPairs : 0);
      if (tile < end) {
        shared_.q_full.wait((state_ & kOddUnit) != 0);
        state_ ^= kOddUnit;
      }
    }
#pragma unroll 1
    for (; tile < end; tile += kPairTiles) {
      const bool is_pair = tile + 1 < end;
      const bool has_own = number() == 0 || is_pair;
      FragmentPv tSrS;
      RowSoFar pair[kThreadRows];
      const bool ends_share = job.is_last && tile + kPairTiles >= end;
      if (has_own) {
        issue_scores(tSrS);
        find_maxima(job, tile + number(), tSrS, pair);
      }
      if (ends_share) {
        arrive(shared_.q_empty);
      }
      const TileSums sums = weigh_pair(has_own, tSrS, pair);
      add_values(job, tile, is_pair, sums, pair, tOrO);
    }
  }

  // Issues S of the own tile, as its quarters arrive.
  template <typename TensorS>
  __device__ __forceinline__ void issue_scores(TensorS& tSrS) {
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int own = number();
      shared_.keys.full[own][quarter].wait(state_ & kOddTile);
      // WGMMA is to see what producers have stored. Those of twins execute the fence themselves.
      if constexpr (!kIsTwin) {
        cutlass::arch::fence_view_async_shared();
      }
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        wgmma_issue_if(quarter + i > 0, MmaQk{}, operand_q(shared_.sQ[block]),
                       operand_k(shared_.keys.tiles[own][block]), tSrS);
      }
    }
    state_ ^= kOddTile;
  }

  // Waits for S of the own tile, and finds its maxima. Which keys exist is read before the wait.
  template <typename TensorS>
  __device__ __forceinline__ void find_maxima(const Job& job, int tile, TensorS& tSrS,
                                              RowSoFar (&pair)[kThreadRows]) const {
    const std::uint64_t exist = rows_that_exist(job.places.of[tile - job.first_tile]);
    const bool sees_all = sees_all_of_tile(job.unit, exist);
    wgmma_wait<0>(tSrS);
    auto rS = by_rows<MmaQk>(tSrS);
    if (!sees_all) {
      mask(rS, job.unit, launch_.shape, tile_at(job.unit, tile), exist);
    }
    float max[kThreadRows];
    row_maxima<MmaQk>(rS, scale_to_log2(p_.scale), max);
    pair[0].max = max[0];
    pair[1].max = max[1];
  }

  // Turns S of the own tile into P. Finds its sums, and the maxima of the pair.
  template <typename TensorS>
  __device__ __forceinline__ TileSums weigh_pair(bool has_own, const TensorS& tSrS,
                                                 RowSoFar (&pair)[kThreadRows]) {
    const int consumer = this_thread() / kWarpgroupThreads - kProducers;  // number(), not uniform
    TileRows& own = shared_.rows[consumer];
    const TileRows& others = shared_.rows[1 - consumer];
    const bool writes = threadIdx.x % 4 == 0;
    int row[kThreadRows];
    float reference[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      row[i] = row_of_thread(i);
      if (writes) {
        own.max[row[i]] = pair[i].max;
      }
    }
    sync_consumers();
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      pair[i].max = fmaxf(pair[i].max, others.max[row[i]]);
      pair[i].reference = ceilf(pair[i].max);
      reference[i] = pair[i].reference;
    }
    TileSums sums{};
    if (has_own) {
      sums = weigh<MmaQk>(by_rows<MmaQk>(tSrS), scale_to_log2(p_.scale), reference,
                          PutInShared(shared_.sP[consumer]));
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (writes) {
        own.sum[row[i]] = sums.exact[i];
        own.rounded_sum[row[i]] = sums.rounded[i];
      }
    }
    cutlass::arch::fence_view_async_shared();  // before WGMMA reads P
    sync_consumers();
    return sums;
  }

  // Adds P V of the pair to O, or leaves it in a slot. Gives back the pair, quarter by quarter. The
  // statistics are found while P V of the first quarter is computed.
  __device__ __forceinline__ void add_values(const Job& job, int tile, bool is_pair,
                                             const TileSums& sums, RowSoFar (&pair)[kThreadRows],
                                             FragmentO (&tOrO)[2]) {
    FragmentPv tPv;
    issue_values(0, is_pair, tPv);
    const TileRows& others = shared_.rows[kProducers + 1 - this_thread() / kWarpgroupThreads];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      pair[i].sum = sums.exact[i] + others.sum[row_of_thread(i)];
      pair[i].rounded_sum = sums.rounded[i] + others.rounded_sum[row_of_thread(i)];
    }
    const Appended row0(rows_[0], pair[0]);
    const Appended row1(rows_[1], pair[1]);
    const bool changes = some_change(row0.before, row1.before);
    rows_[0] = row0.row;
    rows_[1] = row1.row;
    finish_values(0, tPv);
    if (leaves_pairs()) {
      if (number() == 0) {
        leave_statistics(launch_, slot_of(job, tile), pair);
      }
    } else if (changes) {
      change<Output<kOutputColumns>::Mma>(row0.before, row1.before, tOrO[0]);
      change<Output<kOutputColumns>::Mma>(row0.before, row1.before, tOrO[1]);
    }
    add_quarter<0>(job, tile, row0, row1, tPv, tOrO);
    add_quarter<1>(job, tile, row0, row1, is_pair, tOrO);
    add_quarter<2>(job, tile, row0, row1, is_pair, tOrO);
    add_quarter<3>(job, tile, row0, row1, is_pair, tOrO);
  }

  template <int kQuarter>
  __device__ __forceinline__ void add_quarter(const Job& job, int tile, const Appended& row0,
                                              const Appended& row1, bool is_pair,
                                              FragmentO (&tOrO)[2]) {
    FragmentPv tPv;
    issue_values(kQuarter, is_pair, tPv);
    finish_values(kQuarter, tPv);
    add_quarter<kQuarter>(job, tile, row0, row1, tPv, tOrO);
  }
  template <int kQuarter>
  __device__ __forceinline__ void add_quarter(const Job& job, int tile, const Appended& row0,
                                              const Appended& row1, const FragmentPv& tPv,
                                              FragmentO (&tOrO)[2]) {
    if (!leaves_pairs()) {
      auto half = half_of(tOrO[kQuarter / 2], kQuarter % 2);
      add<MmaPv>(row0.behind, row1.behind, half, tPv);
    } else {
      leave(launch_, slot_of(job, tile), block_of_quarter(kQuarter, number()) * kBlockDims, tPv);
    }
  }

  // Where the results of the pair go whose first tile is `tile`.
  __device__ static int slot_of(const Job& job, int tile) {
    return job.slot0 + 1 + whole_pairs(tile - job.slots_tile);
  }

  // Issues P V of the pair's quarter.
  __device__ __forceinline__ void issue_values(int quarter, bool is_pair, FragmentPv& tPv) {
    const int block = block_of_quarter(quarter, number());
    wgmma_issue<false>(MmaPv{}, operand_p(shared_.sP[0]), operand_v(shared_.keys.tiles[0][block]),
                       tPv);
    if (is_pair) {
      wgmma_issue<true>(MmaPv{}, operand_p(shared_.sP[1]), operand_v(shared_.keys.tiles[1][block]),
                        tPv);
    }
  }
  // Waits for it, and gives the quarter back.
  __device__ __forceinline__ void finish_values(int quarter, FragmentPv& tPv) {
    wgmma_wait<0>(tPv);
    give_back<kIsTwin>(shared_.keys.empty[quarter]);
  }

  // Stores the results of the pairs that this block has merged, or leaves them. A cluster's blocks
  // merge what all have left.
  __device__ __forceinline__ void finish(const Job& job, FragmentO (&tOrO)[2]) {
    if (job.share == 0) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        const int column0 = (number() + 2 * i) * kOutputColumns;
        compute_here(rows_[0].reference);  // O leaves no registers for what follows from it
        compute_here(rows_[1].reference);
        if (job.leaves) {
          leave(launch_, job.slot0, column0, tOrO[0]);
        } else if (!launch_.are_clusters) {
          store_results<kOutputColumns>(p_, launch_, job.unit, job.sinks, column0, tOrO[0], rows_);
        }
        tOrO[0] = tOrO[1];
      }
      if (job.leaves && number() == 0) {
        leave_statistics(launch_, job.slot0, rows_);
      }
    }
    if (launch_.are_clusters) {
      if (job.leaves) {
        cute::cluster_arrive();
        cute::cluster_wait();
      }
      // Mostly a strip for each of the cluster's consumers.
      if (p_.o_scale != nullptr || launch_.shares <= 3) {
        merge<kOutputColumns, 1>(job);
      } else {
        merge<kOutputColumns / 2, 3>(job);
      }
    }
  }

  // Merges what the blocks of a cluster have left, kColumns columns at a time, which blocks and
  // consumers share, and kSlots slots at once.
  template <int kColumns, int kSlots>
  __device__ __forceinline__ void merge(const Job& job) {
    constexpr int kStrips = kDims / kColumns;
    const int strips = (kStrips + launch_.shares - 1) / launch_.shares;
    const int end = min(kStrips, (block_rank() + 1) * strips);
#pragma unroll 1
    for (int strip = block_rank() * strips + number(); strip < end; strip += kConsumers) {
      const int column0 = strip * kColumns;
      typename Output<kColumns>::Fragment tOrO;
      begin(tOrO);
      cute::fill(tOrO, -0.0f);  // to which even -0 may be added
      append_slots<kColumns, kSlots>(launch_, job.slot0, job.slots, column0, tOrO, rows_);
      store_results<kColumns>(p_, launch_, job.unit, job.sinks, column0, tOrO, rows_);
    }
  }

  // O and its statistics over no keys.
  template <typename TensorO>
  __device__ __forceinline__ void begin(TensorO& tOrO) {
    cute::clear(tOrO);
    rows_[0] = RowSoFar{};
    rows_[1] = RowSoFar{};
  }

  SharedStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  RowSoFar rows_[kThreadRows];  // over the pairs that this block has merged
  std::uint32_t state_ = 0;     // of State
};

template <int kFormats, bool kIsTwin>
__global__ void __launch_bounds__(kThreads, 1)
    dsv4_decode(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage*>(smem);
  if (threadIdx.x == 0) {
    shared.init(kIsTwin);
  } else if (threadIdx.x == 32) {
    write_empty_job(shared.jobs[0], launch);
  }
  let_next_launch_start();
  if constexpr (kIsTwin) {
    cute::cluster_arrive();
    cute::cluster_wait();
  } else {
    __syncthreads();  // the barriers and job 0 are there
  }
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup < kProducers) {
    cutlass::arch::warpgroup_reg_dealloc<64>();
    Producer<kFormats, kIsTwin>(shared, p, launch).run(map_q);
  } else {
    cutlass::arch::warpgroup_reg_alloc<192>();
    Consumer<kIsTwin>(shared, p, launch).run();
  }
  if constexpr (kIsTwin) {  // none ends while the other may arrive at its barriers
    cute::cluster_arrive();
    cute::cluster_wait();
  }
}

template <int kFormats>
void launch_formats(const Params& p, const Dsv4Details& details, Stream stream) {
  const Dsv4Plan& plan = details.plan;
  const auto launch = [&](auto is_twin) {
    launch_with<dsv4_decode<kFormats, is_twin>>(
        {.cluster = is_twin ? kTwins : plan.cluster, .may_start_early = true}, plan.blocks,
        kThreads, sizeof(SharedStorage), stream, p, map_of_q(p, plan.shape), launch_of(p, details));
  };
  if constexpr (!kDsv4Formats[kFormats].has(KvRowFormat::bf16)) {
    if (plan.are_twins) {
      return launch(std::true_type{});
    }
  }
  launch(std::false_type{});
}

}  // namespace tilewright::cuda::dsv4
