// The loaders of a block of a cluster: they bring rows of the caches to SMEM as BF16, whole ones as
// K and the block's slice of all as V.
#pragma once

#include "cuda/attention/dsv4_decode/cluster_storage.cuh"
#include "cuda/attention/dsv4_decode/lane.cuh"

namespace tilewright::cuda::dsv4 {

// Warpgroup `number`, which loads K of that consumer's tiles, and V of every second tile.
template <int kFormats, int kCluster>
class Loader {
 public:
  using Storage = ClusterStorage<kCluster>;
  using Tiles = Deal<kCluster>;

  __device__ Loader(Storage& shared, const Params& p, const Launch& launch, int rank, int number)
      : shared_(shared), p_(p), launch_(launch), rank_(rank), number_(number) {}

  __device__ __forceinline__ void run() {
    const int tiles = uniform(shared_.unit.end_tile - shared_.unit.first_tile);
    int first = 0;
#pragma unroll 1
    do {
      next_stretch<true>(shared_, p_, launch_, first);
      const int end = min(tiles, first + kStretchTiles);
#pragma unroll 1
      for (int round = first; round < end; round += kRoundTiles) {
        load_round(first, round, min(end, round + kRoundTiles));
      }
      first += kStretchTiles;
    } while (first < tiles);
  }

 private:
  template <KvRowFormat kFormat>
  using ItsLane = Lane<kFormat, kLoaderWarps>;

  // Tiles are numbers in the item from here on.
  __device__ __forceinline__ void load_round(int stretch, int first, int end) {
    const int tile0 = uniform(shared_.unit.first_tile);
#pragma unroll 1
    for (int tile = Tiles::first_of(rank_, number_, first); tile < end; tile += Tiles::kOwners) {
      with_format<kFormats>(format_at(tile0 + tile), [&](auto format) {
        load_keys(lane_at<format.value>(tile0 + stretch), tile0 + tile);
      });
    }
    int tile = first + (number_ - first % kLoaders + kLoaders) % kLoaders;
    while (tile < end) {
      const int run = run_end<kFormats>(p_, shared_.unit, tile0 + tile, tile0 + end) - tile0;
      with_format<kFormats>(format_at(tile0 + tile), [&](auto format) {
        tile = load_values(lane_at<format.value>(tile0 + stretch), tile, run);
      });
    }
  }

  __device__ KvRowFormat format_at(int tile) const {
    return format_of<kFormats>(p_, tile_at(shared_.unit, tile).source);
  }
  template <KvRowFormat kFormat>
  __device__ ItsLane<kFormat> lane_at(int stretch) const {
    return ItsLane<kFormat>(p_, launch_, shared_.unit, shared_.places, stretch);
  }

  // Loads K of a tile, which goes to the consumer 64 dims at a time. Some groups are on their way.
  template <typename Lane>
  __device__ __forceinline__ void load_keys(const Lane& lane, int tile) {
    constexpr int kPasses = Lane::kPasses;
    constexpr int kAhead = Lane::kFormat == KvRowFormat::bf16 ? 2 : 4;
    const auto rows = lane.find(tile, tile + 1);
    typename Lane::Raw raw[kAhead][kPasses];
    const auto load = [&](int group) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        raw[group % kAhead][pass] = lane.load(rows, pass, group);
      }
    };
#pragma unroll
    for (int group = 0; group < kAhead; ++group) {
      load(group);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int stage = group % kScoreStages;
      shared_.k_empty[number_][stage].wait((group / kScoreStages & 1) ^ 1);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        lane.put(shared_.sK[number_][stage], pass, group, raw[group % kAhead][pass], rows);
      }
      fill(shared_.k_full[number_][stage]);
      if (group + kAhead < kGroups) {
        load(group + kAhead);
      }
    }
  }

  // Loads the block's slice of V of every second tile from `tile` on, counted from the unit's
  // first. 128 dims are on their way. Returns the first one from `end` on.
  template <typename Lane>
  __device__ __forceinline__ int load_values(const Lane& lane, int tile, int end) {
    constexpr int kPasses = Lane::kPasses;
    constexpr int kSliceGroups = Storage::kSliceDims / kBlockDims;
    constexpr int kAhead = 2 / kSliceGroups;
    const int tile0 = uniform(shared_.unit.first_tile);
    typename Lane::Rows rows[kAhead];
    typename Lane::Raw raw[kAhead][kPasses][kSliceGroups];
    const auto load = [&](int i, int its_tile) {
      rows[i] = lane.find(tile0 + its_tile, tile0 + end);
#pragma unroll
      for (int j = 0; j < kPasses * kSliceGroups; ++j) {
        raw[i][j / kSliceGroups][j % kSliceGroups] =
            lane.load(rows[i], j / kSliceGroups, rank_ * kSliceGroups + j % kSliceGroups);
      }
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load(i, tile + i * kLoaders);
    }
#pragma unroll 1
    while (tile < end) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i, tile += kLoaders) {
        if (tile >= end) {
          return tile;
        }
        const int stage = tile % Storage::kValueStages;
        shared_.v_empty[stage].wait((tile / Storage::kValueStages & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < kPasses * kSliceGroups; ++j) {
          const int group = j % kSliceGroups;
          lane.template put<Storage::kColumns>(shared_.sV[stage][group], j / kSliceGroups,
                                               rank_ * kSliceGroups + group,
                                               raw[i][j / kSliceGroups][group], rows[i]);
        }
        fill(shared_.v_full[stage]);
        load(i, tile + kAhead * kLoaders);
      }
    }
    return tile;
  }

  Storage& shared_;
  const Params& p_;
  const Launch& launch_;
  const int rank_;
  const int number_;
};

}  // namespace tilewright::cuda::dsv4
