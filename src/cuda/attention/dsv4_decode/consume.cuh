// A consumer of dsv4_decode with up to 64 rows: S of one tile of each pair, and half of O's
// columns.
#pragma once

#include "cuda/attention/dsv4_decode/consume_jobs.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/attention/dsv4_decode/twin_produce.cuh"

namespace tilewright::cuda::dsv4 {

// A consumer: the first or the second, by its threads. It has output blocks number() and
// number() + 2.
template <Form kForm>
class Consumer : public JobConsumer<kForm, FragmentO[2], Consumer<kForm>> {
  using Base = JobConsumer<kForm, FragmentO[2], Consumer>;
  using Base::launch_, Base::leaves_pairs, Base::number, Base::shared_, Base::state_;

 public:
  // kOddTile: has this consumer computed the scores of an odd number of tiles?
  enum State : std::uint32_t { kOddTile = 1, kOddUnit = 2, kLeavesPairs = 4, kIsSecond = 8 };

  __device__ Consumer(SharedStorage<kForm>& shared, const Params& p, const Launch& launch)
      : Base(shared, launch), p_(p) {}

  __device__ __forceinline__ void begin(FragmentO (&tOrO)[2]) {
    clear(tOrO[0]);
    clear(tOrO[1]);
  }

  __device__ __forceinline__ void run_pairs(const Job& job, FragmentO (&tOrO)[2]) {
    const int end = uniform(job.end_tile);
    int tile = uniform(job.first_tile);
    Base::enter(job, tile < end);
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

 private:
  // Issues S of the own tile, as its quarters arrive.
  template <typename TensorS>
  __device__ __forceinline__ void issue_scores(TensorS& tSrS) {
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      shared_.keys.full[number()][quarter].wait(state_ & kOddTile);
      // WGMMA is to see what producers have stored. Those of twins execute the fence themselves.
      if constexpr (kForm != Form::twins) {
        cutlass::arch::fence_view_async_shared();
      }
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        wgmma_issue_if(quarter + i > 0, MmaQk{}, operand_q(shared_.sQ[block]),
                       operand_k(shared_.keys.tiles[number()][block]), tSrS);
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
    TileRows& own = shared_.rows[number()];
    const TileRows& others = shared_.rows[1 - number()];
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
                          PutInShared(shared_.sP[number()]));
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
        leave_statistics(launch_, pair_slot(job, tile), pair);
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
      leave(launch_, pair_slot(job, tile), block_of_quarter(kQuarter, number()) * kBlockDims, tPv);
    }
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
    give_back<kForm == Form::twins>(shared_.keys.empty[quarter]);
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
      clear(tOrO);
      cute::fill(tOrO, -0.0f);  // to which even -0 may be added
      append_slots<kColumns, kSlots>(launch_, job.slot0, job.slots, column0, tOrO, rows_);
      store_results<kColumns>(p_, launch_, job.unit, job.sinks, column0, tOrO, rows_);
    }
  }

  // O and its statistics over no keys.
  template <typename TensorO>
  __device__ __forceinline__ void clear(TensorO& tOrO) {
    cute::clear(tOrO);
    rows_[0] = RowSoFar{};
    rows_[1] = RowSoFar{};
  }

  const Params& p_;
  RowSoFar rows_[kThreadRows];  // over the pairs that this block has merged
};

}  // namespace tilewright::cuda::dsv4
