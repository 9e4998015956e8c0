// A consumer of dsv4_decode with few rows: S^T of one tile of each pair, and half of O's columns,
// which are rows of O^T.
//
//   S^T = K Q^T | maxima | sync | P^T, sums of two keys | sync | 4 x: O^T += V^T P^T of 64 dims
//
// Registers  112, of which O^T has 32, S^T 8, and V^T P^T of two quarters 16. The statistics of a
//            row are in those of eight neighbouring threads.
// At a unit's end O^T becomes O on its way through SMEM, so that whole sectors are stored.
#pragma once

#include "cuda/attention/dsv4_decode/consume_jobs.cuh"
#include "cuda/attention/dsv4_decode/few_rows.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"

namespace tilewright::cuda::dsv4 {

class FewConsumer : public JobConsumer<Form::few, FragmentFew[kQuarters], FewConsumer> {
 public:
  using Storage = SharedStorage<Form::few>;

  // kOddPair, kOddTile: has this consumer had an odd number of pairs, and computed the scores of an
  // odd number of tiles?
  enum State : std::uint32_t {
    kOddUnit = 1,
    kOddPair = 2,
    kOddTile = 4,
    kLeavesPairs = 8,
    kIsSecond = 16
  };

  __device__ FewConsumer(Storage& shared, const Params& p, const Launch& launch)
      : JobConsumer(shared, launch), p_(p) {}

  __device__ __forceinline__ void begin(FragmentFew (&tO)[kQuarters]) {
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      cute::clear(tO[quarter]);
    }
    row_ = RowSoFar{};
  }

  __device__ __forceinline__ void run_pairs(const Job& job, FragmentFew (&tO)[kQuarters]) {
    const int end = uniform(job.end_tile);
    int tile = uniform(job.first_tile);
    enter(job, tile < end);
#pragma unroll 1
    for (; tile < end; tile += kPairTiles) {
      identify();
      const bool is_pair = tile + 1 < end;
      int(&maxima)[kFewRows] = shared_.rows.maxima[is_odd_pair()];
      FragmentFew tS;
      if (number() == 0 || is_pair) {
        compute_scores(job, tile + number(), tS);
        find_few_maxima(tS, thread_, scale_to_log2(p_.scale), maxima);
      } else {
        cute::fill(tS, float{kMinusInf});
      }
      if (job.is_last && tile + kPairTiles >= end) {
        arrive(shared_.q_empty);
      }
      weigh_pair(maxima, tS);
      add_values(job, tile, is_pair, tO);
      state_ ^= kOddPair;
    }
  }

  // Stores the results of the pairs that this block has merged, or leaves them. A cluster's blocks
  // merge what all have left.
  __device__ __forceinline__ void finish(const Job& job, FragmentFew (&tO)[kQuarters]) {
    identify();
    if (job.share == 0) {
      if (job.leaves) {
        leave_row(job.slot0, row_);
        cute::for_each(cute::make_int_sequence<kQuarters>{}, [&](auto quarter) {
          leave_few(job.slot0, block_of_quarter(quarter, number()), tO[quarter]);
        });
      } else if (!launch_.are_clusters) {
        store(job, tO);
      }
    }
    if (launch_.are_clusters) {
      if (job.leaves) {
        cute::cluster_arrive();
        cute::cluster_wait();  // all have read the last pair's sums, too; job 0 has none
      }
      merge(job);
    }
  }

 private:
  static constexpr int kUnderWay = 2;  // quarters of V^T P^T
  static constexpr int kFirstThread = producers(Form::few) * kWarpgroupThreads;  // of consumers
  static constexpr int kRowThreads = 4 * kPairTiles;

  __device__ bool is_odd_pair() const { return (state_ & kOddPair) != 0; }

  // The row whose statistics this thread of the first consumer has.
  static_assert(kFewRows * kRowThreads == kWarpgroupThreads);
  __device__ bool has_row() const { return number() == 0; }
  __device__ int own_row() const { return (thread_ - kFirstThread) / kRowThreads; }
  __device__ bool is_first_of_row() const { return has_row() && thread_ % kRowThreads == 0; }

  // Reads the thread's number, anew for each pair and each end of a job, so that what follows from
  // it is in no register meanwhile.
  __device__ __forceinline__ void identify() { thread_ = this_thread(); }

  // S^T of the own tile, as its quarters arrive.
  __device__ __forceinline__ void compute_scores(const Job& job, int tile, FragmentFew& tS) {
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      shared_.keys.full[number()][quarter].wait((state_ & kOddTile) != 0);
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int block = block_of_quarter(quarter, i);
        issue_few_scores(quarter + i > 0, shared_.keys.tiles[number()][block], shared_.sQ[block],
                         tS);
      }
    }
    state_ ^= kOddTile;
    const std::uint64_t exist = rows_that_exist(job.places.of[tile - job.first_tile]);
    const bool sees_all = sees_all_of_tile(job.unit, exist);
    wgmma_wait<0>(tS);
    if (!sees_all) {
      mask_few(tS, thread_, job.unit, launch_.shape, tile_at(job.unit, tile), exist);
    }
  }

  // Turns S^T into P^T, and finds the references of the pair and the factors that follow from them.
  __device__ __forceinline__ void weigh_pair(int (&maxima)[kFewRows], FragmentFew& tS) {
    sync_consumers();
    float references[kThreadColumns];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      references[c] = reference_of(maxima[thread_ % 4 * kThreadColumns + c]);
    }
    if (has_row()) {
      const int place = place_of_maximum(own_row());
      pair_row_.max = float_of_ordered(maxima[place]);
      pair_row_.reference = reference_of(maxima[place]);
      if (is_first_of_row()) {
        shared_.rows.maxima[!is_odd_pair()][place] = ordered(kMinusInf);  // nobody's yet
        const Appended factors(RowSoFar{.reference = row_.reference},
                               RowSoFar{.reference = pair_row_.reference});
        shared_.rows.factors[place] = {factors.before, factors.behind};
      }
    }
    weigh_few(tS, thread_, scale_to_log2(p_.scale), references, shared_.sP[number()],
              shared_.rows.sums[number()]);
    cutlass::arch::fence_view_async_shared();  // before WGMMA reads P
    sync_consumers();
  }

  // Adds V^T P^T of the pair to O^T, or leaves it in a slot. Gives back the pair, quarter by
  // quarter.
  __device__ __forceinline__ void add_values(const Job& job, int tile, bool is_pair,
                                             FragmentFew (&tO)[kQuarters]) {
    FragmentFew tPv[kUnderWay];
    cute::for_each(cute::make_int_sequence<kUnderWay>{},
                   [&](auto quarter) { issue_values(quarter, is_pair, tPv[quarter]); });
    if (leaves_pairs()) {
      add_sums();
      return leave_pair(job, tile, is_pair, tPv);
    }
    float before[kThreadColumns];
    float behind[kThreadColumns];
    bool changes = false;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const float2 its = shared_.rows.factors[thread_ % 4 * kThreadColumns + c];
      before[c] = its.x;
      behind[c] = its.y;
      changes |= before[c] != 1.0f;
    }
    if (__any_sync(0xffffffffu, changes)) {
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          element(tO[quarter], 0, c) *= before[c];
          element(tO[quarter], 1, c) *= before[c];
        }
      }
    }
    for_each_quarter(is_pair, tPv, [&](auto quarter, const FragmentFew& its) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& o = element(tO[quarter], half, c);
          o = fmaf(element(its, half, c), behind[c], o);
        }
      }
    });
    add_sums();
  }

  // Leaves a pair's results in a slot.
  __device__ __forceinline__ void leave_pair(const Job& job, int tile, bool is_pair,
                                             FragmentFew (&tPv)[kUnderWay]) {
    const int slot = pair_slot(job, tile);
    leave_row(slot, pair_row_);
    for_each_quarter(is_pair, tPv, [&](auto quarter, const FragmentFew& its) {
      leave_few(slot, block_of_quarter(quarter, number()), its);
    });
  }

  // Calls f(quarter, V^T P^T) for each quarter, and gives it back. The first ones have been issued.
  template <typename F>
  __device__ __forceinline__ void for_each_quarter(bool is_pair, FragmentFew (&tPv)[kUnderWay],
                                                   const F& f) {
    cute::for_each(cute::make_int_sequence<kQuarters>{}, [&](auto quarter) {
      FragmentFew& its = tPv[quarter % kUnderWay];
      wgmma_wait<std::min(kUnderWay, kQuarters - quarter) - 1>(its);
      arrive(shared_.keys.empty[quarter]);
      f(quarter, its);
      if constexpr (quarter + kUnderWay < kQuarters) {
        issue_values(quarter + kUnderWay, is_pair, its);
      }
    });
  }

  // Issues V^T P^T of the own column block of a quarter.
  __device__ __forceinline__ void issue_values(int quarter, bool is_pair, FragmentFew& tPv) {
    const int block = block_of_quarter(quarter, number());
    issue_few_values(shared_.keys.tiles[0][block],
                     is_pair ? shared_.keys.tiles[1][block] : shared_.rows.zeros, shared_.sP, tPv);
  }

  // The sums of the own row over the pair: in each tile, vector by vector, then over the pairs of
  // neighbouring keys, and then of both tiles.
  __device__ __forceinline__ void add_sums() {
    if (!has_row()) {
      return;
    }
    float exact = 0.0f;
    float rounded = 0.0f;
#pragma unroll
    for (int vector = 0; vector < kTileKeys / 8; ++vector) {
      const float2 its = shared_.rows.sums[thread_ / 4 % 2][vector][thread_ % 4][own_row()];
      exact += its.x;
      rounded += its.y;
    }
#pragma unroll
    for (int bit = 1; bit < kRowThreads; bit *= 2) {
      exact += __shfl_xor_sync(0xffffffffu, exact, bit);
      rounded += __shfl_xor_sync(0xffffffffu, rounded, bit);
    }
    pair_row_.sum = exact;
    pair_row_.rounded_sum = rounded;
    row_ = Appended(row_, pair_row_).row;
  }

  __device__ __forceinline__ void leave_row(int slot, const RowSoFar& row) const {
    if (is_first_of_row()) {
      __stcg(&launch_.statistics[std::int64_t{slot} * kRows + own_row()],
             float4{row.reference, row.max, row.sum, row.rounded_sum});
    }
  }

  // Leaves 64 columns of results where the other form's threads would.
  __device__ __forceinline__ void leave_few(int slot, int block, const FragmentFew& tPv) const {
    const int lane = thread_ % 32;
    const int warp = thread_ % kWarpgroupThreads / 32;
    float4* const pieces =
        launch_.o + std::int64_t{slot} * (kRows * kDims / 4) + block * (kBlockDims * kRows / 4);
    const int rows = rows_of(launch_.shape);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const int row = row_of_column(c, thread_);
      if (row < rows) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int thread = row / 16 * 32 + row % 8 * 4 + lane / 8;
          float* const piece =
              reinterpret_cast<float*>(pieces + (2 * warp + half) * kWarpgroupThreads + thread);
          __stcg(piece + row / 8 % 2 * 2 + lane / 4 % 2, element(tPv, half, c));
        }
      }
    }
  }

  // Merges what the blocks of a cluster have left. Warps share O's columns, eight at a time, of
  // which a lane has two of two rows, as they lie in the workspace.
  __device__ __forceinline__ void merge(const Job& job) {
    constexpr int kStrips = 2;  // of eight columns, that are merged at once,
    constexpr int kSlots = 3;   // from so many slots
    const int warps = launch_.shares * (kConsumerThreads / 32);
    const int warp = block_rank() * (kConsumerThreads / 32) + (thread_ - kFirstThread) / 32;
    const int lane = thread_ % 32;
    find_slot_factors(job);
#pragma unroll 1
    for (int first = warp; first < kDims / 8; first += warps * kStrips) {
      float4 o[kStrips];
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        o[i] = {-0.0f, -0.0f, -0.0f, -0.0f};  // to which even -0 may be added
      }
#pragma unroll 1
      for (int slot = 0; slot < job.slots; slot += kSlots) {
        float4 x[kSlots][kStrips];
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
#pragma unroll
          for (int i = 0; i < kStrips; ++i) {
            const int strip = first + i * warps;
            if (slot + k < job.slots && strip < kDims / 8) {
              x[k][i] =
                  __ldcg(launch_.o + std::int64_t{job.slot0 + slot + k} * (kRows * kDims / 4) +
                         strip * kWarpgroupThreads + lane);
            }
          }
        }
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          if (slot + k < job.slots) {
            const float2 row0 = shared_.rows.slots[slot + k][lane / 4];
            const float2 row1 = shared_.rows.slots[slot + k][lane / 4 + 8];
#pragma unroll
            for (int i = 0; i < kStrips; ++i) {
              o[i] = {fmaf(x[k][i].x, row0.y, o[i].x * row0.x),
                      fmaf(x[k][i].y, row0.y, o[i].y * row0.x),
                      fmaf(x[k][i].z, row1.y, o[i].z * row1.x),
                      fmaf(x[k][i].w, row1.y, o[i].w * row1.x)};
            }
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int index = lane / 4 + 8 * half;
        const Row row = row_of(job.unit, launch_.shape, index);
        if (row.exists) {
#pragma unroll
          for (int i = 0; i < kStrips; ++i) {
            const int strip = first + i * warps;
            if (strip < kDims / 8) {
              const float factor = shared_.rows.ends[index];
              float pair[2] = {(half == 0 ? o[i].x : o[i].z) * factor,
                               (half == 0 ? o[i].y : o[i].w) * factor};
              store_vector(p_, job.unit, row, strip * 8 + 2 * (lane % 4), pair);
            }
          }
        }
      }
    }
  }

  // Finds by what O of each row is multiplied before each slot is added, what that is multiplied
  // by, and the row's end. The first block of the cluster stores that.
  __device__ __forceinline__ void find_slot_factors(const Job& job) {
    const int row = thread_ - kFirstThread;
    if (row < kFewRows) {
      RowSoFar so_far;
#pragma unroll 1
      for (int slot = 0; slot < job.slots; ++slot) {
        const float4 its =
            __ldcg(&launch_.statistics[std::int64_t{job.slot0 + slot} * kRows + row]);
        const Appended appended(so_far, {its.x, its.y, its.z, its.w});
        so_far = appended.row;
        shared_.rows.slots[slot][row] = {appended.before, appended.behind};
      }
      const RowEnd end(p_, launch_, job.unit, job.sinks, so_far, row);
      if (end.row.exists && block_rank() == 0) {
        store_statistics(p_, job.unit, end);
      }
      shared_.rows.ends[row] = end.factor;
    }
    sync_consumers();
  }

  // O^T becomes O on its way through SMEM, some column blocks at a time.
  __device__ __forceinline__ void store(const Job& job, FragmentFew (&tO)[kQuarters]) {
    constexpr int kPut = FewExchange::kPutBlocks;
    sync_consumers();  // all have read the last pair's sums and factors
    if (has_row()) {
      const RowEnd end(p_, launch_, job.unit, job.sinks, row_, own_row());
      if (is_first_of_row()) {
        if (end.row.exists) {
          store_statistics(p_, job.unit, end);
        }
        shared_.rows.ends[own_row()] = end.factor;
      }
    }
    sync_consumers();
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; quarter += kPut) {
      put(tO);
      sync_number();
      store_blocks(job.unit, block_of_quarter(quarter, number()) * kBlockDims);
      cute::for_each(cute::make_int_sequence<kQuarters - kPut>{},
                     [&](auto i) { tO[i] = tO[i + kPut]; });
      sync_number();
    }
  }

  __device__ void sync_number() const {
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, kConsumerSync + number());
  }

  // Puts the first column blocks of O in SMEM.
  __device__ __forceinline__ void put(const FragmentFew (&tO)[kQuarters]) {
    const int dim = row_of_thread(0, thread_);
#pragma unroll
    for (int block = 0; block < FewExchange::kPutBlocks; ++block) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          shared_.rows.o[number()][row_of_column(c, thread_)][block * kBlockDims + dim + 8 * half] =
              element(tO[block], half, c);
        }
      }
    }
  }

  // Stores those, which begin with column `column0`, eight columns a thread.
  __device__ __forceinline__ void store_blocks(const Unit& unit, int column0) const {
    constexpr int kVectors = FewExchange::kPutBlocks * kBlockDims / 8;  // of a row
    const int rows = rows_of(launch_.shape);
#pragma unroll 1
    for (int i = thread_ % kWarpgroupThreads; i < rows * kVectors; i += kWarpgroupThreads) {
      const int index = i / kVectors;
      const int column = i % kVectors * 8;
      const Row row = row_of(unit, launch_.shape, index);
      if (!row.exists) {
        continue;
      }
      const float* const from = &shared_.rows.o[number()][index][column];
      const float factor = shared_.rows.ends[index];
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        values[j] = from[j] * factor;
      }
      store_vector(p_, unit, row, column0 + column, values);
    }
  }

  const Params& p_;
  RowSoFar row_;       // this thread's, over the pairs that the block has merged
  RowSoFar pair_row_;  // over a pair
  int thread_;
};

}  // namespace tilewright::cuda::dsv4
