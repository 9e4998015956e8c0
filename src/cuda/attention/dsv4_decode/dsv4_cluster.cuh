// DeepSeek-V4's attention, a cluster of blocks an item (configs of dsv4_decode with a cluster), for
// batches too small to fill the GPU with an item an SM.
//
// Each consumer of the cluster owns a slice of O's columns, over all keys, and computes the scores
// of some key tiles, over all dims. So O is never merged, and P is what blocks exchange: a round
// has up to 16 key tiles, which are dealt out to consumers.
//
//   1  S = Q K^T of the own tiles; their rows' maxima go to all blocks (st.async)
//   2  the references of the round's tiles follow from all maxima, tile after tile
//   3  P of an own tile and its statistics go to all blocks (bulk copies)
//   4  O += P V for every tile of the round, in order
//
// References, P and the order of sums are those of one block an item (dsv4_decode.cuh): the bits
// are the same.
//
// Source    DeepSeek-V4 technical report, section 3.3: two kernels with one order of accumulation.
// Tiles     64 rows, 64 keys; 512 threads: two warpgroups that load, two consumers.
// SMEM      Q 64 KB; K of each consumer's tile in 2 stages of 64 dims, 32 KB; slices of V of 64
//           keys in 2 stages of 16 KB (cluster of 4) or 4 of 8 KB (8); P of 8 tiles, 72 KB; maxima
//           of two rounds, 8 KB: 208 KB (+ 6 KB).
// Registers 112 for a thread of a loader, of which 40 hold rows on their way; 144 for one of a
//           consumer, of which 32 hold S of each of its tiles and kColumns / 2 hold O.
//
//   loader c      K of consumer c's tiles, group by group | V slices of every second tile | ...
//   consumer c    S | maxima out | wait | P out | wait P, V: O += P V | ... | next round
//
// Limits    As of one block an item; o is not E4M3, whose scales belong to 128 columns.
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/cluster_loader.cuh"
#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/cluster.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

// A consumer of block `rank` of a cluster.
template <int kFormats, int kCluster, int kConsumer>
class ClusterConsumer {
 public:
  using Storage = ClusterStorage<kCluster>;
  using Tiles = Deal<kCluster>;
  static constexpr int kTilesEach = Tiles::kTilesEach;
  static constexpr int kColumns = Storage::kColumns;
  using Mma = MmaPv<kColumns>;
  using FragmentS = decltype(cute::partition_fragment_C(MmaQk{}, cute::Shape<cute::_64, Keys>{}));

  __device__ ClusterConsumer(Storage& shared, const Params& p, const Launch& launch, int rank)
      : shared_(shared), p_(p), launch_(launch), rank_(rank) {}

  __device__ __forceinline__ void run() {
    const Unit& unit = shared_.unit;
    const int tiles = uniform(unit.end_tile - unit.first_tile);
    auto tOrO = cute::partition_fragment_C(Mma{}, cute::Shape<cute::_64, cute::Int<kColumns>>{});
    cute::clear(tOrO);
    int round = 0;
    int first = 0;
#pragma unroll 1
    do {
      next_stretch<false>(shared_, p_, launch_, first);
      const int end = min(tiles, first + kStretchTiles);
      prefetch(first, end);
      shared_.q_full.wait(0);
#pragma unroll 1
      for (int from = first; from < end; from += kRoundTiles) {
        run_round(from, min(end, from + kRoundTiles), round++, tOrO);
      }
      first += kStretchTiles;
    } while (first < tiles);
    finish(unit, tOrO);
  }

 private:
  // This thread's two rows among the pairs of rows.
  __device__ static int pair_of_thread() {
    const int row = row_of_thread(0);
    return row / 16 * 8 + row % 8;
  }
  __device__ static bool is_first_thread() {
    return kConsumer == 0 && threadIdx.x % kWarpgroupThreads == 0;
  }
  __device__ const int (&places_of(int tile) const)[kTileKeys] {
    return shared_.places.of[tile % kStretchTiles];
  }

  // Brings the rows of this consumer's tiles to L2. All blocks read them as V.
  __device__ void prefetch(int first, int end) const {
    const int tile0 = shared_.unit.first_tile;
#pragma unroll 1
    for (int tile = Tiles::first_of(rank_, kConsumer, first); tile < end; tile += Tiles::kOwners) {
      prefetch_rows<kFormats>(p_, launch_, shared_.unit, tile0 + tile, places_of(tile));
    }
  }

  // Tiles [first, end) of the unit.
  template <typename TensorO>
  __device__ __forceinline__ void run_round(int first, int end, int round, TensorO& tOrO) {
    const int own = Tiles::first_of(rank_, kConsumer, first);
    TmaBarrier& maxima_full = shared_.maxima_full[round % 2];
    FragmentS tSrS[kTilesEach];
    float max[kTilesEach][kThreadRows];
    if (is_first_thread()) {
      maxima_full.arrive_and_expect_tx((end - first) * kRows * sizeof(float));
    }
#pragma unroll
    for (int i = 0; i < kTilesEach; ++i) {
      const int tile = own + i * Tiles::kOwners;
      if (tile < end) {
        compute_scores(tSrS[i]);
        find_maxima(tile, tSrS[i], max[i]);
        send_maxima(shared_.maxima[round % 2][tile - first], max[i], maxima_full);
      }
    }
    maxima_full.wait(round / 2 & 1);
    const float reference0[kThreadRows] = {rows_[0].reference, rows_[1].reference};
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) {
#pragma unroll
      for (int i = 0; i < kTilesEach; ++i) {
        const int its = own + i * Tiles::kOwners;
        // P of a tile needs a slot that everybody, this consumer too, has given back.
        if (its < end && tile == cute::max(first, its - kSlots + 2)) {
          float reference[kThreadRows] = {reference0[0], reference0[1]};
          find_references(round, its - first, reference);
          send_own(its, tSrS[i], max[i], reference);
        }
      }
      add_values(tile, tile > first, tOrO);
    }
    wgmma_wait<0>(tOrO);
    give_back(end - 1);
  }

  template <typename TensorS>
  __device__ __forceinline__ void find_maxima(int tile, TensorS& tSrS, float (&max)[kThreadRows]) {
    const Unit& unit = shared_.unit;
    auto rS = by_rows<MmaQk>(tSrS);
    mask(rS, unit, launch_.shape, tile_at(unit, unit.first_tile + tile),
         rows_that_exist(places_of(tile)));
    row_maxima<MmaQk>(rS, scale_to_log2(p_.scale), max);
  }

  // S of an own tile becomes P, in all blocks.
  template <typename TensorS>
  __device__ __forceinline__ void send_own(int tile, TensorS& tSrS, const float (&max)[kThreadRows],
                                           const float (&reference)[kThreadRows]) {
    const int place = tile % kSlots;
    PSlot& slot = shared_.slots[place];
    wait_for_all(shared_.p_empty[place], (tile / kSlots & 1) ^ 1);
    const TileSums sums =
        weigh<MmaQk>(by_rows<MmaQk>(tSrS), scale_to_log2(p_.scale), reference, slot.p);
    if (threadIdx.x % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        set_statistics(slot.rows, row_of_thread(i),
                       {reference[i], max[i], sums.exact[i], sums.rounded[i]});
      }
    }
    send_p(slot, shared_.p_full[place]);
  }

  // S of an own tile. A stage is released when the step behind it is on its way.
  template <typename TensorS>
  __device__ __forceinline__ void compute_scores(TensorS& tSrS) {
    add_group<0>(tSrS);
    add_groups(tSrS, std::make_integer_sequence<int, kGroups - 1>{});
    wgmma_wait<0>(tSrS);
    release_keys(kGroups - 1);
  }
  template <typename TensorS, int... kIndices>
  __device__ __forceinline__ void add_groups(TensorS& tSrS,
                                             std::integer_sequence<int, kIndices...>) {
    ((add_group<kIndices + 1>(tSrS), wgmma_wait<1>(tSrS), release_keys(kIndices)), ...);
  }
  template <int kGroup, typename TensorS>
  __device__ __forceinline__ void add_group(TensorS& tSrS) {
    constexpr int kSteps = kBlockDims / 16;
    constexpr int kStage = kGroup % kScoreStages;
    shared_.k_full[kConsumer][kStage].wait(kGroup / kScoreStages & 1);
    issue_scores_of<kGroup * kSteps, (kGroup + 1) * kSteps, kGroup * kSteps>(
        operand_q(shared_.sQ), operand_k_block(shared_.sK[kConsumer][kStage]), tSrS);
  }
  __device__ void release_keys(int group) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.k_empty[kConsumer][group % kScoreStages].arrive();
    }
  }

  // The lanes of a quad, which all have the maxima, send them to different blocks.
  __device__ void send_maxima(TwoMaxima (&own)[kRows / 2], const float (&max)[kThreadRows],
                              TmaBarrier& full) {
    TwoMaxima* const place = &own[pair_of_thread()];
    for (int block = threadIdx.x % 4; block < kCluster; block += 4) {
      send(place, block, float2{max[0], max[1]}, RemoteBarrier(full, block));
    }
  }

  // References go from tile to tile in order, from those before the round to those of its tile
  // `in_round`.
  __device__ void find_references(int round, int in_round, float (&reference)[kThreadRows]) const {
    const int pair = pair_of_thread();
    for (int tile = 0; tile <= in_round; ++tile) {
      const TwoMaxima max = shared_.maxima[round % 2][tile][pair];
      reference[0] = next_reference(reference[0], max.x);
      reference[1] = next_reference(reference[1], max.y);
    }
  }

  // Copies P and its statistics to the same place in the other blocks.
  __device__ void send_p(PSlot& slot, TmaBarrier& full) const {
    constexpr std::uint32_t kBarrier = 1 + kConsumer;
    cutlass::arch::fence_view_async_shared();  // before the copies read it
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, kBarrier);
    const int block = threadIdx.x % kWarpgroupThreads;
    if (block == rank_) {
      full.arrive();
    } else if (block < kCluster) {
      copy_to_block(&slot, sizeof(PSlot), block, full);
    }
  }

  // Takes up P of a tile, waits for P V of the one before if there is one in the round, and issues
  // O += P V.
  template <typename TensorO>
  __device__ __forceinline__ void add_values(int tile, bool has_before, TensorO& tOrO) {
    const int place = tile % kSlots;
    const int stage = tile % Storage::kValueStages;
    PSlot& slot = shared_.slots[place];
    TmaBarrier& full = shared_.p_full[place];
    if (is_first_thread() && Tiles::block_of(tile) != rank_) {
      full.arrive_and_expect_tx(sizeof(PSlot));
    }
    full.wait(tile / kSlots & 1);
    float from[kThreadRows];
    float to[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const RowSoFar its = statistics_of(slot.rows, row_of_thread(i));
      from[i] = rows_[i].reference;
      to[i] = its.reference;
      rows_[i] = with_tile(rows_[i], its.reference, its.max, its.sum, its.rounded_sum);
    }
    wgmma_wait<0>(tOrO);
    if (has_before) {
      give_back(tile - 1);
    }
    auto rO = by_rows<Mma>(tOrO);
    move_references(rO, from, to);
    shared_.v_full[stage].wait(tile / Storage::kValueStages & 1);
    wgmma_issue<true>(Mma{}, operand_p<kColumns>(slot.p),
                      operand_v<kColumns>(shared_.sV[stage][kConsumer]), tOrO);
  }

  // P V of a tile has been added: gives back its V, and its P to the block that fills the slot.
  __device__ void give_back(int tile) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.v_empty[tile % Storage::kValueStages].arrive();
      arrive_in_block(shared_.p_empty[tile % kSlots], Tiles::block_of(tile));
    }
  }

  // Stores the results, or leaves a part of them and stores those of all parts if it is the last.
  template <typename TensorO>
  __device__ __forceinline__ void finish(const Unit& unit, TensorO& tOrO) {
    const int column0 = rank_ * Storage::kSliceDims + kConsumer * kColumns;
    constexpr bool kHasStatistics = kConsumer == 0;
    if (unit.parts > 1) {
      // The statistics are the same in all blocks, each of which counts its own arrivals.
      leave_part(launch_, unit.index, column0, kHasStatistics, tOrO, rows_);
      const int item = unit.index - unit.part * launch_.items;
      if (!arrives_last(launch_, unit.parts, item * kCluster + rank_, shared_.ticket)) {
        return;
      }
      merge_parts<Mma>(launch_, item, launch_.items, unit.parts, column0, tOrO, rows_);
    }
    store_results<Mma>(p_, launch_, unit, column0, kHasStatistics && rank_ == 0, tOrO, rows_);
  }

  Storage& shared_;
  const Params& p_;
  const Launch& launch_;
  const int rank_;
  RowSoFar rows_[kThreadRows];
};

template <int kFormats, int kCluster>
__global__ void __launch_bounds__(kClusterThreads, 1)
    dsv4_cluster(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                 const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<ClusterStorage<kCluster>*>(smem);
  const int rank = static_cast<int>(cute::block_rank_in_cluster());
  if (threadIdx.x == 0) {
    shared.init();
    begin(shared.unit, -1);
  }
  let_next_launch_start();
  wait_for_launch_before();
  cute::cluster_arrive_relaxed();  // this block's barriers are there
  if (cutlass::canonical_warp_idx_sync() == 0) {
    find_unit(shared.unit, p, launch, blockIdx.x / kCluster);
  }
  __syncthreads();  // the unit is there
  const bool has_rows = uniform(shared.unit.tokens) > 0;
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (has_rows && warpgroup < kLoaders) {
    cutlass::arch::warpgroup_reg_dealloc<112>();
    if (threadIdx.x == 0) {
      load_q(shared.sQ, shared.q_full, shared.unit, launch, map_q);
    }
    __syncwarp();
    Loader<kFormats, kCluster>(shared, p, launch, rank, warpgroup).run();
  } else if (has_rows) {
    cutlass::arch::warpgroup_reg_alloc<144>();
    if (warpgroup == kLoaders) {
      ClusterConsumer<kFormats, kCluster, 0>(shared, p, launch, rank).run();
    } else {
      ClusterConsumer<kFormats, kCluster, 1>(shared, p, launch, rank).run();
    }
  } else {
    cute::cluster_wait();
  }
  cute::cluster_sync();  // nobody writes to a block that has ended
}

template <int kFormats, int kCluster>
void launch_cluster(const Params& p, const Dsv4Details& details, Stream stream) {
  const Launch launch = launch_of(p, details);
  launch_with<dsv4_cluster<kFormats, kCluster>>(
      {.cluster = kCluster, .may_start_early = true}, launch.units * kCluster, kClusterThreads,
      sizeof(ClusterStorage<kCluster>), stream, p, map_of_q(p, details.plan.shape), launch);
}

}  // namespace tilewright::cuda::dsv4
