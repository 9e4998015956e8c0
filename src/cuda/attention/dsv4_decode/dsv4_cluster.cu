// DeepSeek-V4's attention, a cluster of blocks an item (configs of dsv4_decode with a cluster), for
// batches too small to fill the GPU with an item an SM.
//
// Each consumer of the cluster owns a slice of O's columns, over all keys, and computes the scores
// of some key tiles, over all dims. So O is never merged, and P is what blocks exchange: a round
// has a key tile for each consumer of the cluster.
//
//   1  S = Q K^T of the own tile; its rows' maxima go to all blocks (st.async)
//   2  the references of the round's tiles follow from all maxima, tile after tile
//   3  P of the own tile and its statistics go to all blocks (bulk copies)
//   4  O += P V for every tile of the round, in order
//
// References, P and the order of sums are those of one block an item (dsv4_decode.cu): the bits are
// the same.
//
// Source    DeepSeek-V4 technical report, section 3.3: two kernels with one order of accumulation.
// Tiles     64 rows, 64 keys; 512 threads: a warpgroup that loads K, one that loads V, 2 consumers.
// SMEM      Q 64 KB; K of each consumer's tile in 3 stages of 64 dims, 48 KB; slices of V of 64
//           keys in 2 stages of 16 KB (cluster of 4) or 3 of 8 KB (8); P of 8 tiles, 72 KB: 216 or
//           208 KB (+ 5 or 9 KB).
// Registers 128 a thread, of which 32 hold S and kColumns / 2 hold O.
//
//   warps 0 to 3    K of consumer 0's tile (2 warps), of consumer 1's (2 warps), group by group
//   warps 4 to 7    V slices, tile by tile
//   consumers       S | maxima out | wait | P out | wait P, V: O += P V | ... | next round
//
// Limits    As of one block an item; o is not E4M3, whose scales belong to 128 columns.
// Worklog   docs/worklog/dsv4-decode.md
#include "cuda/attention/dsv4_decode/lane.cuh"
#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/cluster.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace dsv4 {

constexpr int kClusterThreads = 512;
constexpr int kScoreStages = 3;  // of a consumer's K: 64 keys, 64 dims
constexpr int kSlots = 8;        // for P
constexpr int kKeyWarps = 2;     // that load K for a consumer
constexpr int kValueWarps = 4;

// P of a tile with its own statistics, as it goes from block to block.
struct PSlot {
  alignas(1024) Element p[kRows * kTileKeys];
  TileRows rows;
};
static_assert(sizeof(PSlot) == 9 * 1024);

// The maxima of two rows, 8 apart, that one thread has.
using TwoMaxima = float2;

template <int kCluster>
struct ClusterStorage {
  static constexpr int kOwners = kCluster * kConsumers;
  static constexpr int kSliceDims = kDims / kCluster;
  static constexpr int kColumns = kSliceDims / kConsumers;
  static constexpr int kValueStages = kCluster == 4 ? 2 : 3;
  using Barrier = cutlass::arch::ClusterBarrier;

  alignas(1024) Element sQ[kRows * kDims];
  alignas(1024) Element sK[kConsumers][kScoreStages][kTileKeys * kBlockDims];
  alignas(1024) Element sV[kValueStages][kConsumers][kTileKeys * kColumns];
  PSlot slots[kSlots];
  TwoMaxima maxima[2][kOwners][kRows / 2];  // of even and odd rounds
  alignas(8) std::uint32_t exist[kConsumers][kKeyWarps];
  Unit unit;
  int ticket;
  TmaBarrier q_full;
  TmaBarrier maxima_full[2];
  TmaBarrier p_full[kSlots];
  Barrier p_empty[kSlots];
  Barrier k_full[kConsumers][kScoreStages];
  Barrier k_empty[kConsumers][kScoreStages];
  Barrier v_full[kValueStages];
  Barrier v_empty[kValueStages];

  __device__ void init() {
    q_full.init(1);
    for (TmaBarrier& barrier : maxima_full) {
      barrier.init(1);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      p_full[slot].init(1);
      p_empty[slot].init(kOwners * kConsumerWarps);
    }
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      for (int stage = 0; stage < kScoreStages; ++stage) {
        k_full[consumer][stage].init(kKeyWarps);
        k_empty[consumer][stage].init(kConsumerWarps);
      }
    }
    for (int stage = 0; stage < kValueStages; ++stage) {
      v_full[stage].init(kValueWarps);
      v_empty[stage].init(kConsumers * kConsumerWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
};
static_assert(sizeof(ClusterStorage<4>) == 221 * 1024);
static_assert(sizeof(ClusterStorage<8>) == 217 * 1024);

// ---- Loading

// Loads K of a consumer's tiles, the unit's tiles `first`, first + step, ...: 64 dims at a time.
template <int kCluster>
__device__ __forceinline__ void load_keys(ClusterStorage<kCluster>& shared, const Params& p,
                                          const Launch& launch, int consumer, int first) {
  const Unit& unit = shared.unit;
  RingPosition<kScoreStages> at;
  for (int tile = unit.first_tile + first; tile < unit.end_tile; tile += 2 * kCluster) {
    with_format(format_of(p, tile_at(unit, tile).source), [&](auto format) {
      Lane<format.value, kKeyWarps> lane(p, launch, unit);
      constexpr int kPasses = decltype(lane)::kPasses;
      lane.find(tile);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        lane.turn_to_next(pass);
      }
      typename decltype(lane)::F::Raw raw[kPasses];
      const auto load = [&](int group) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          raw[pass] = lane.load(pass, group);
        }
      };
      load(0);
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group, at.advance()) {
        Element* const block = shared.sK[consumer][at.stage];
        shared.k_empty[consumer][at.stage].wait(at.phase ^ 1);
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          lane.store(block, pass, group, raw[pass]);
        }
        if (group + 1 < kGroups) {
          load(group + 1);
        } else {
          const std::uint32_t exist = lane.exist();
          if (threadIdx.x % 32 == 0) {
            shared.exist[consumer][threadIdx.x / 32 % kKeyWarps] = exist;
          }
        }
        fill(shared.k_full[consumer][at.stage]);
      }
    });
  }
}

// Loads the block's slice of V of all tiles.
template <int kCluster>
__device__ __forceinline__ void load_values(ClusterStorage<kCluster>& shared, const Params& p,
                                            const Launch& launch, int rank) {
  using Storage = ClusterStorage<kCluster>;
  constexpr int kSliceGroups = Storage::kSliceDims / kBlockDims;
  const Unit& unit = shared.unit;
  RingPosition<Storage::kValueStages> at;
  int tile = unit.first_tile;
  while (tile < unit.end_tile) {
    const int end = run_end(p, unit, tile);
    with_format(format_of(p, tile_at(unit, tile).source), [&](auto format) {
      Lane<format.value, kValueWarps> lane(p, launch, unit);
      constexpr int kPasses = decltype(lane)::kPasses;
      typename decltype(lane)::F::Raw raw[kPasses][kSliceGroups];
      const auto load = [&](int its_tile) {
        lane.find(its_tile);
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          lane.turn_to_next(pass);
#pragma unroll
          for (int i = 0; i < kSliceGroups; ++i) {
            raw[pass][i] = lane.load(pass, rank * kSliceGroups + i);
          }
        }
      };
      load(tile);
#pragma unroll 1
      for (; tile < end; ++tile, at.advance()) {
        shared.v_empty[at.stage].wait(at.phase ^ 1);
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
          for (int i = 0; i < kSliceGroups; ++i) {
            lane.template store<Storage::kColumns>(shared.sV[at.stage][i], pass,
                                                   rank * kSliceGroups + i, raw[pass][i]);
          }
        }
        if (tile + 1 < end) {
          load(tile + 1);
        }
        fill(shared.v_full[at.stage]);
      }
    });
  }
}

// ---- Computing

// A consumer of a cluster: owner 2 * rank + kConsumer.
template <int kCluster, int kConsumer>
class ClusterConsumer {
 public:
  using Storage = ClusterStorage<kCluster>;
  static constexpr int kOwners = Storage::kOwners;
  static constexpr int kColumns = Storage::kColumns;
  using Mma = MmaPv<kColumns>;

  __device__ ClusterConsumer(Storage& shared, const Params& p, const Launch& launch, int rank)
      : shared_(shared), p_(p), launch_(launch), rank_(rank) {}

  __device__ __forceinline__ void run() {
    const Unit& unit = shared_.unit;
    const int tiles = uniform(unit.end_tile - unit.first_tile);
    auto tOrO = cute::partition_fragment_C(Mma{}, cute::Shape<cute::_64, cute::Int<kColumns>>{});
    cute::clear(tOrO);
    shared_.q_full.wait(0);
    int round = 0;
    for (int first = 0; first < tiles; first += kOwners) {
      run_round(first, min(kOwners, tiles - first), round++, tOrO);
    }
    finish(unit, tOrO);
  }

 private:
  // This thread's two rows among the pairs of rows.
  __device__ static int pair_of_thread() {
    return row_of_thread(0) / 16 * 8 + row_of_thread(0) % 8;
  }
  __device__ int owner() const { return kConsumers * rank_ + kConsumer; }
  __device__ static bool is_first_thread() {
    return kConsumer == 0 && threadIdx.x % kWarpgroupThreads == 0;
  }

  // Tiles `first` and on of the unit, one for each owner.
  template <typename TensorO>
  __device__ __forceinline__ void run_round(int first, int tiles, int round, TensorO& tOrO) {
    const int own = first + owner();
    const bool has_own = owner() < tiles;
    TmaBarrier& maxima_full = shared_.maxima_full[round % 2];
    auto tSrS = cute::partition_fragment_C(MmaQk{}, cute::Shape<cute::_64, Keys>{});
    float max[kThreadRows];
    float reference[kThreadRows];
    if (is_first_thread()) {
      maxima_full.arrive_and_expect_tx(tiles * kRows * sizeof(float));
    }
    if (has_own) {
      compute_scores(tSrS);
      find_maxima(own, tSrS, max);
      send_maxima(round, max, maxima_full);
      wait_for_all(maxima_full, round / 2 & 1);
      find_references(round, reference);
    }
    // P of a tile needs a slot that everybody, this consumer too, has read before.
    const int send_before = cute::max(first, own - kSlots + 1);
#pragma unroll 1
    for (int tile = first; tile < first + tiles; ++tile) {
      if (has_own && tile == send_before) {
        send_own(own, tSrS, max, reference);
      }
      add_values(tile, tile - first, tOrO);
    }
  }

  template <typename TensorS>
  __device__ __forceinline__ void find_maxima(int own, TensorS& tSrS, float (&max)[kThreadRows]) {
    const Unit& unit = shared_.unit;
    auto rS = by_rows<MmaQk>(tSrS);
    const auto exist = *reinterpret_cast<const std::uint64_t*>(shared_.exist[kConsumer]);
    mask(rS, score_coordinates(), unit, launch_.shape, tile_at(unit, unit.first_tile + own), exist);
    row_maxima<MmaQk>(rS, scale_to_log2(p_.scale), max);
  }

  // S of the own tile becomes P, in all blocks.
  template <typename TensorS>
  __device__ __forceinline__ void send_own(int own, TensorS& tSrS, const float (&max)[kThreadRows],
                                           const float (&reference)[kThreadRows]) {
    const int place = own % kSlots;
    PSlot& slot = shared_.slots[place];
    wait_for_all(shared_.p_empty[place], (own / kSlots & 1) ^ 1);
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

  // S of the own tile. A stage is released when the step behind it is on its way.
  template <typename TensorS>
  __device__ __forceinline__ void compute_scores(TensorS& tSrS) {
    add_group<0>(tSrS);
    add_groups(tSrS, std::make_integer_sequence<int, kGroups - 1>{});
    wgmma_wait<0>(tSrS);
    release_keys();
  }
  template <typename TensorS, int... kIndices>
  __device__ __forceinline__ void add_groups(TensorS& tSrS,
                                             std::integer_sequence<int, kIndices...>) {
    ((add_group<kIndices + 1>(tSrS), wgmma_wait<1>(tSrS), release_keys()), ...);
  }
  template <int kGroup, typename TensorS>
  __device__ __forceinline__ void add_group(TensorS& tSrS) {
    constexpr int kSteps = kBlockDims / 16;
    shared_.k_full[kConsumer][k_at_.stage].wait(k_at_.phase);
    issue_scores_of<kGroup * kSteps, (kGroup + 1) * kSteps, kGroup * kSteps>(
        operand_q(shared_.sQ), operand_k_block(shared_.sK[kConsumer][k_at_.stage]), tSrS);
    k_at_.advance();
  }
  __device__ void release_keys() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.k_empty[kConsumer][k_done_.stage].arrive();
    }
    k_done_.advance();
  }

  // The lanes of a quad, which all have the maxima, send them to different blocks.
  __device__ void send_maxima(int round, const float (&max)[kThreadRows], TmaBarrier& full) {
    TwoMaxima& own = shared_.maxima[round % 2][owner()][pair_of_thread()];
    for (int block = threadIdx.x % 4; block < kCluster; block += 4) {
      send(&own, block, float2{max[0], max[1]}, RemoteBarrier(full, block));
    }
  }

  // References go from tile to tile in order; those of the own one.
  __device__ void find_references(int round, float (&reference)[kThreadRows]) const {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      reference[i] = rows_[i].reference;
    }
    for (int tile = 0; tile <= owner(); ++tile) {
      const TwoMaxima max = shared_.maxima[round % 2][tile][pair_of_thread()];
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

  // Takes up P of a tile, which is the round's tile `in_round`, and adds P V to O.
  template <typename TensorO>
  __device__ __forceinline__ void add_values(int tile, int in_round, TensorO& tOrO) {
    const int place = tile % kSlots;
    PSlot& slot = shared_.slots[place];
    TmaBarrier& full = shared_.p_full[place];
    if (is_first_thread() && in_round / kConsumers != rank_) {
      full.arrive_and_expect_tx(sizeof(PSlot));
    }
    wait_for_all(full, tile / kSlots & 1);
    float from[kThreadRows];
    float to[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const RowSoFar its = statistics_of(slot.rows, row_of_thread(i));
      from[i] = rows_[i].reference;
      to[i] = its.reference;
      rows_[i] = with_tile(rows_[i], its.reference, its.max, its.sum, its.rounded_sum);
    }
    auto rO = by_rows<Mma>(tOrO);
    move_references(rO, from, to);
    shared_.v_full[v_at_.stage].wait(v_at_.phase);
    wgmma<true>(Mma{}, operand_p<kColumns>(slot.p),
                operand_v<kColumns>(shared_.sV[v_at_.stage][kConsumer]), tOrO);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.v_empty[v_at_.stage].arrive();
    }
    arrive_in_blocks(shared_.p_empty[place]);
    v_at_.advance();
  }

  // Each warp arrives at a barrier in all blocks.
  __device__ static void arrive_in_blocks(cutlass::arch::ClusterBarrier& barrier) {
    if (threadIdx.x % 32 < kCluster) {
      arrive_in_block(barrier, threadIdx.x % 32);
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
  RingPosition<kScoreStages> k_at_;
  RingPosition<kScoreStages> k_done_;
  RingPosition<Storage::kValueStages> v_at_;
};

template <int kCluster>
__global__ void __launch_bounds__(kClusterThreads, 1)
    dsv4_cluster(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                 const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<ClusterStorage<kCluster>*>(smem);
  const int rank = static_cast<int>(cute::block_rank_in_cluster());
  const int warp = cutlass::canonical_warp_idx_sync();
  if (threadIdx.x == 0) {
    shared.init();
    begin(shared.unit, -1);
  }
  let_next_launch_start();
  wait_for_launch_before();
  if (warp == 0) {
    find_unit(shared.unit, p, launch, blockIdx.x / kCluster);
  }
  cute::cluster_sync();  // barriers and the unit are there
  const bool has_rows = uniform(shared.unit.tokens) > 0;
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (has_rows && warpgroup == 0) {
    if (threadIdx.x == 0) {
      load_q(shared.sQ, shared.q_full, shared.unit, launch, map_q);
    }
    __syncwarp();
    const int consumer = warp / kKeyWarps;
    load_keys(shared, p, launch, consumer, kConsumers * rank + consumer);
  } else if (has_rows && warpgroup == 1) {
    load_values(shared, p, launch, rank);
  } else if (has_rows && warpgroup == 2) {
    ClusterConsumer<kCluster, 0>(shared, p, launch, rank).run();
  } else if (has_rows) {
    ClusterConsumer<kCluster, 1>(shared, p, launch, rank).run();
  }
  cute::cluster_sync();  // nobody writes to a block that has ended
}

}  // namespace dsv4

void launch_dsv4_cluster(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream) {
  const dsv4::Launch launch = dsv4::launch_of(p, details);
  const auto queue = [&]<int kCluster>() {
    launch_with<dsv4::dsv4_cluster<kCluster>>({.cluster = kCluster, .may_start_early = true},
                                              launch.units * kCluster, dsv4::kClusterThreads,
                                              sizeof(dsv4::ClusterStorage<kCluster>), stream, p,
                                              dsv4::map_of_q(p, details.plan.shape), launch);
  };
  if (details.plan.cluster == 4) {
    queue.template operator()<4>();
  } else {
    queue.template operator()<8>();
  }
}

}  // namespace tilewright::cuda
