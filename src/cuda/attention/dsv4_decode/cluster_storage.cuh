// What the blocks of a cluster have in SMEM, and how key tiles are dealt out (dsv4_cluster.cuh).
#pragma once

#include "cuda/attention/dsv4_decode/places.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kClusterThreads = 512;
inline constexpr int kRoundTiles = 16;
inline constexpr int kScoreStages = 2;  // of a consumer's K: 64 keys, 64 dims
static_assert(kGroups % (2 * kScoreStages) == 0, "each tile begins in stage 0, in phase 0");
inline constexpr int kSlots = 8;  // for P
inline constexpr int kLoaders = kConsumers;
inline constexpr int kLoaderWarps = 4;

// P of a tile with its own statistics, as it goes from block to block.
struct PSlot {
  alignas(1024) Element p[kRows * kTileKeys];
  TileRows rows;
};
static_assert(sizeof(PSlot) == 9 * 1024);

// The maxima of two rows, 8 apart, that one thread has.
using TwoMaxima = float2;

// How tiles are dealt out, which are counted from the unit's first. Block `rank` computes tiles
// whose number leaves `rank`, divided by kCluster, and its consumers take turns. So a slot for P is
// always filled by the same block.
template <int kCluster>
struct Deal {
  static constexpr int kOwners = kCluster * kConsumers;
  static constexpr int kTilesEach = kRoundTiles / kOwners;  // of a round
  static_assert(kSlots % kCluster == 0);

  __device__ static int block_of(int tile) { return tile % kCluster; }
  // The first tile from `first` on of a block's consumer; the others are kOwners apart.
  __device__ static int first_of(int rank, int consumer, int first) {
    return first + (consumer * kCluster + rank - first % kOwners + kOwners) % kOwners;
  }
};

template <int kCluster>
struct ClusterStorage {
  static constexpr int kSliceDims = kDims / kCluster;
  static constexpr int kColumns = kSliceDims / kConsumers;
  static constexpr int kValueStages = kCluster == 4 ? 2 : 4;
  static_assert(kValueStages % kLoaders == 0, "a stage is always filled by the same loader");
  using Barrier = cutlass::arch::ClusterBarrier;

  alignas(1024) Element sQ[kRows * kDims];
  alignas(1024) Element sK[kConsumers][kScoreStages][kTileKeys * kBlockDims];
  alignas(1024) Element sV[kValueStages][kConsumers][kTileKeys * kColumns];
  PSlot slots[kSlots];
  TwoMaxima maxima[2][kRoundTiles][kRows / 2];  // of even and odd rounds
  Places places;
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
      p_empty[slot].init(kCluster * kConsumers * kConsumerWarps);
    }
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      for (int stage = 0; stage < kScoreStages; ++stage) {
        k_full[consumer][stage].init(kLoaderWarps);
        k_empty[consumer][stage].init(kConsumerWarps);
      }
    }
    for (int stage = 0; stage < kValueStages; ++stage) {
      v_full[stage].init(kLoaderWarps);
      v_empty[stage].init(kConsumers * kConsumerWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
};
static_assert(sizeof(ClusterStorage<4>) == 214 * 1024);
static_assert(sizeof(ClusterStorage<8>) == 214 * 1024);

// Goes on to the stretch of the unit's tiles from `first` on, counted from the unit's first. All
// threads of the block call it, and return when the places of its rows are known. Loaders find
// them. From the first stretch on the other blocks' barriers are there.
template <bool kIsLoader, typename Storage>
__device__ Stretch next_stretch(Storage& shared, const Params& p, const Launch& launch, int first) {
  const Stretch stretch(shared.unit, shared.unit.first_tile + first);
  if (first > 0) {
    __syncthreads();  // nobody needs the places before any more
  }
  if (kIsLoader) {
    find_places<kLoaders * kWarpgroupThreads>(shared.places, p, launch, shared.unit, stretch);
  }
  if (first == 0) {
    cute::cluster_wait();
  }
  __syncthreads();
  return stretch;
}

}  // namespace tilewright::cuda::dsv4
