// What the decode kernel knows of its config at compile time, the SMEM of a block, and a launch's
// schedule.
#pragma once

#include "cuda/attention/blocks/cache_boxes.hpp"
#include "cuda/attention/blocks/tile_ring.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/attention/decode/configs.hpp"
#include "cuda/attention/decode/schedule.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace decode {

// Config kIndex, for elements of type T.
template <int kIndex, typename T>
struct ConfigOf {
  using Element = T;
  static constexpr DecodeConfig C = kDecodeConfigs[kIndex];
  static constexpr int kThreads = block_threads(1);
  static constexpr int kConsumerWarps = kWarpgroupThreads / 32;
  using Position = RingPosition<C.stages>;
  using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, C.stages, C.value_dim>;
  static_assert(kWarpgroupRows == kDecodeTileRows);
};

// What a worker computes at once, for one row tile.
struct Part {
  SequenceLengths lengths;
  int sequence;
  int cache_row;  // if not paged
  int kv_head;
  int first_head;  // query head of row 0
  int heads;       // of the row tile; the other rows of a token do not exist
  int token0;      // within the sequence
  int tokens;
  TileRange tiles;  // key tiles of this block
  int seen_first;   // no query of the sequence sees keys outside [seen_first, seen_end), and their
  int seen_end;     // values may be NaN
  PartPlace place;
  bool is_end;  // there are no more parts
};
using PartRing = TileRing<Part>;

// A block's results, which the blocks of its cluster read.
template <typename Config>
struct Exchange {
  static constexpr int kRow = Config::C.value_dim + 8;  // shifts a row's banks against the next's
  alignas(16) float o[kWarpgroupRows * kRow];
  float max[kWarpgroupRows];
  float sum[kWarpgroupRows];
  cutlass::arch::ClusterBarrier written;  // by all blocks: their results may be read
  cutlass::arch::ClusterBarrier read;     // by all blocks: this block's may be overwritten
};
struct NoExchange {};

// `Config` is a ConfigOf.
template <typename Config>
struct SharedStorage {
  using Element = typename Config::Element;
  static constexpr DecodeConfig C = Config::C;
  alignas(1024) Element sQ[kWarpgroupRows * C.head_dim];   // (64, D)
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];   // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.value_dim];  // (Bc, Dv, stages)
  TmaRing<1> q;
  TmaRing<C.stages> k;
  TmaRing<C.stages> v;
  PartRing parts;
  int ticket;
  cute::conditional_t<C.in_clusters, Exchange<Config>, NoExchange> exchange;
};

struct TensorMaps {
  CUtensorMap q, k, v;
};

// A launch's schedule, and where partial results lie.
struct Launch {
  DecodeShape shape;
  Workers workers;
  CacheBoxes boxes;
  int slot_rows;
  float* o;                 // (slots, slot_rows, Dv)
  float* row_max;           // (slots, slot_rows)
  float* row_sum;           // likewise
  std::uint64_t* counters;  // (slots, cluster)
  std::uint64_t epoch;
};

// The block's index in its worker.
__device__ inline int rank_in(const Launch& launch) {
  return static_cast<int>(blockIdx.x) % launch.workers.cluster;
}

}  // namespace decode
}  // namespace tilewright::cuda
