// The producers of dsv4_spread (spread.cuh), and what its block has in SMEM: two warpgroups that
// bring K of the block's own pair, and the block's columns of V of all tiles.
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/common/launch_order.cuh"

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

}  // namespace tilewright::cuda::dsv4
