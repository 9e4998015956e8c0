// What the decode kernel knows of its config at compile time, the SMEM of a block, and a launch's
// schedule.
#pragma once

#include "cuda/attention/blocks/cache_boxes.hpp"
#include "cuda/attention/blocks/tile_ring.cuh"
#include "cuda/attention/decode/configs.hpp"
#include "cuda/attention/decode/fragments.cuh"
#include "cuda/attention/decode/schedule.hpp"
#include "cuda/common/tma.cuh"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {
namespace decode {

using Params = AttentionWithKvCacheParams;

// The keys of a warp's step.
inline constexpr int kStepKeys = 16;

// Config kIndex, for q and o of type T and caches of type CacheT, which is T or a byte of E4M3.
template <int kIndex, typename T, typename CacheT>
struct ConfigOf {
  using Element = T;
  static constexpr DecodeConfig C = kDecodeConfigs[kIndex];
  static constexpr int kCache_bytes = sizeof(CacheT);
  static constexpr bool kIsE4m3 = kCache_bytes == 1;
  static constexpr int kStages = kIsE4m3 ? 2 * C.stages - 1 : C.stages;
  using Position = RingPosition<kStages>;
  using TileK = TileLayout<C.head_dim * kCache_bytes>;
  using TileV = TileLayout<C.value_dim * kCache_bytes>;

  static constexpr int kRows = 16 * C.row_warps;                 // of a row tile
  static constexpr int kKeyWarps = kDecodeWarps / C.row_warps;   // that share a row tile's keys
  static constexpr int kWarpKeys = kDecodeTileKeys / kKeyWarps;  // of a tile
  static constexpr int kConsumerThreads = 32 * kDecodeWarps;
  static constexpr int kThreads = 2 * kConsumerThreads;  // with a warpgroup that loads
  static constexpr bool kMayCluster = C.most_cluster > 1;
  static constexpr bool kQueriesInSmem = C.head_dim > 192;  // for want of registers
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
  int first;        // some row sees keys [first, end)
  int end;
  int whole_first;  // all rows see keys [whole_first, whole_end)
  int whole_end;
  int seen_first;  // no query of the sequence sees keys outside [seen_first, seen_end), and their
  int seen_end;    // values may be NaN
  PartPlace place;
  bool is_end;  // there are no more parts
};
using PartRing = TileRing<Part>;

// Q, as fragments of A for each lane.
template <typename Config>
struct Queries {
  uint4 fragments[Config::C.row_warps][Config::C.head_dim / 16][32];
};
struct NoQueries {};

// Partial results of the eight rows of each warp that are merged in one pass: O lies in the part's
// last key tile.
struct PassStatistics {
  float max[kDecodeWarps][8];
  float sum[kDecodeWarps][8];
};

// A block's slice of the columns of a pass, from all blocks of its cluster.
template <typename Config>
struct Exchange {
  static constexpr int kPassRows = Config::kRows / 2;
  static constexpr int kPieces = kPassRows * Config::C.value_dim / 4;
  float4 o[kPieces];                                // (block, row, piece of the slice)
  float2 statistics[kMaxDecodeCluster][kPassRows];  // m and l
  TmaBarrier written;                               // by all blocks
  cutlass::arch::ClusterBarrier read;               // by all blocks: it may be overwritten
};
struct NoExchange {};

// `Config` is a ConfigOf.
template <typename Config>
struct SharedStorage {
  static constexpr int kTile_bytes = Config::TileK::kTile_bytes + Config::TileV::kTile_bytes;
  alignas(1024) std::uint8_t tiles[Config::kStages][kTile_bytes];  // K, then V
  cute::conditional_t<Config::kQueriesInSmem, Queries<Config>, NoQueries> queries;
  // E4M3 rows may have a descale each.
  alignas(16) float descales[Config::kIsE4m3 ? Config::kStages : 1][2]
                            [Config::kIsE4m3 ? kDecodeTileKeys : 1];
  TmaRing<Config::kStages> k;
  TmaRing<Config::kStages> v;
  PartRing parts;
  PassStatistics statistics;
  int ticket;
  cute::conditional_t<Config::kMayCluster, Exchange<Config>, NoExchange> exchange;
};

struct TensorMaps {
  CUtensorMap k, v;
};

// A launch's schedule, and where partial results lie.
struct Launch {
  DecodeShape shape;
  Workers workers;
  bool loads_boxes;  // by TMA; or else row by row
  CacheBoxes boxes;
  CacheBoxes rows;  // boxes of one row
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
