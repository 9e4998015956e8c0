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

// Config kIndex, for q and o of type T and caches of type CacheT, which is T or a byte of E4M3.
// With a T of BF16, over E4M3 caches q may also be of E4M3.
template <int kIndex, typename T, typename CacheT, bool kInvariant>
struct ConfigOf {
  using Element = T;
  static constexpr bool kIsInvariant = kInvariant;
  static constexpr DecodeConfig C = kDecodeConfigs[kIndex];
  static constexpr int kCache_bytes = sizeof(CacheT);
  static constexpr bool kIsE4m3 = kCache_bytes == 1;
  static constexpr bool kTakesE4m3Queries = kIsE4m3 && cute::is_same_v<T, cute::bfloat16_t>;
  static constexpr int kStages = kIsE4m3 ? C.e4m3_stages : C.stages;
  using Position = RingPosition<kStages>;
  using TileK = TileLayout<C.head_dim * kCache_bytes>;
  using TileV = TileLayout<C.value_dim * kCache_bytes>;

  static constexpr int kRows = C.rows;  // of a row tile
  // The most sequences whose lengths a block keeps. Where queries are the rows of MMAs, and many,
  // the warps that load have no registers for that.
  static constexpr int kMostKnown = C.swaps || C.rows == 16 ? 128 : 0;
  static constexpr int kTileWarps = 4;  // that read a key tile
  static constexpr int kConsumerWarps = C.swaps ? swapped_groups(C) * kTileWarps : kTileWarps;
  static constexpr int kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kThreads = kConsumerThreads + 128;  // with a warpgroup that loads
  static constexpr bool kMayCluster = C.most_cluster > 1;
  static constexpr bool kMayLoadRows = !C.swaps;  // row by row, and not by TMA
  // Whether a worker may take further shares: where queries are the rows, registers are too few.
  static constexpr bool kMayTake = C.swaps && !kIsInvariant;
  // A block's warps, or warpgroups, merge their results in passes over so many rows.
  static constexpr int kPasses = C.swaps ? 1 : 2;
  static constexpr int kPassRows = kRows / kPasses;
  // Whether the consumer has no registers to spare, not even for what saves instructions at a
  // part's end.
  static constexpr bool kIsFull = kIsE4m3 && kRows >= 32;
};

// What a worker computes at once, for one row tile. A bundle comes as one Part for each split,
// unless the blocks of a cluster have a split each.
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
  int split;        // if batch-invariant: which one this is of a bundle's `splits`
  int splits;
  int first;  // some row sees keys [first, end)
  int end;
  int whole_first;  // all rows see keys [whole_first, whole_end)
  int whole_end;
  int seen_first;  // no query of the sequence sees keys outside [seen_first, seen_end), and their
  int seen_end;    // values may be NaN
  PartPlace place;
  bool asks;      // while its last tiles are loaded, the warp that loads K asks for another part
  bool is_last;   // no part follows, unless this one is void; false where shares may be taken
  bool is_end;    // no part: there are no more
  bool is_guess;  // by lengths that a launch ahead may still have written
  bool is_void;   // of a guess, behind SharedStorage::judged: it has no results
};
using PartRing = TileRing<Part>;

// The ring begins with a part without keys and without rows (put_empty_part), which is the
// consumer's alone: a warp that loads leaves it out.
__device__ inline PartRing::Position leave_empty_part(PartRing& ring) {
  PartRing::Position at;
  ring.release(at);
  at.advance();
  return at;
}

// A block's slice of the columns of a pass, from all blocks of its cluster.
template <typename Config>
struct Exchange {
  static constexpr int kPieces = Config::kPassRows * Config::C.value_dim / 4;
  float4 o[kPieces];                                        // (block, row, piece of the slice)
  float2 statistics[kMaxDecodeCluster][Config::kPassRows];  // m and l
  TmaBarrier written;                                       // by all blocks
  cutlass::arch::ClusterBarrier read;                       // by all blocks: it may be overwritten
};
struct NoExchange {};

// The consumer has one of two forms. In this one queries are the rows of MMAs (warps.cuh): each
// warp has 16 of them, and keys of each tile that it shares with no other.
template <typename Config>
struct WarpsForm {
  static constexpr int kRowWarps = Config::C.rows / 16;
  static constexpr int kKeyWarps = Config::kConsumerWarps / kRowWarps;  // that share a row's keys
  static constexpr int kWarpKeys = kDecodeTileKeys / kKeyWarps;         // of a tile
  static constexpr bool kQueriesInSmem = Config::C.head_dim > 192;      // for want of registers

  struct Queries {
    uint4 fragments[kRowWarps][Config::C.head_dim / 16][32];  // of A, for each lane
  };
  struct NoQueries {};
  struct Memory {
    cute::conditional_t<kQueriesInSmem, Queries, NoQueries> queries;
    // Of the eight rows of each warp that are merged in one pass. O lies in the part's last tile.
    float2 statistics[Config::kConsumerWarps][8];  // m and l
  };
};

// In this one keys are the rows of MMAs (decode_swapped.cuh), and the warpgroups take tiles in
// turn.
template <typename Config>
struct SwappedForm {
  using Element = typename Config::Element;
  static constexpr int kGroups = Config::kConsumerThreads / 128;
  static constexpr int kQuery_elements = Config::kRows * Config::C.head_dim;
  static constexpr int kQueryStages = kQuery_elements < 4096 ? 2 : 1;
  // Beside E4M3 caches Q's columns change their order on their way to SMEM. Of many rows that would
  // take one warp longer than the first K takes: the consumer brings them.
  static constexpr bool kConsumerBringsQ = Config::kIsE4m3 && Config::kRows >= 32;

  struct Memory {
    alignas(1024) Element q[kQueryStages][kQuery_elements];
    float reduced[kGroups][4][Config::kRows];   // of each warp's keys: maxima, then sums
    float2 statistics[kGroups][Config::kRows];  // m and l
    TmaRing<kQueryStages> queries;              // unless the consumer brings them
  };
};

// What the call's arrays say of kMost sequences.
template <int kMost>
struct KnownLengths {
  int q_starts[kMost + 1];  // if packed
  int cached[kMost + 1];
  int leftpad[kMost + 1];
};

// `Config` is a ConfigOf.
template <typename Config>
struct SharedStorage {
  using Form = cute::conditional_t<Config::C.swaps, SwappedForm<Config>, WarpsForm<Config>>;
  static constexpr int kTile_bytes = Config::TileK::kTile_bytes + Config::TileV::kTile_bytes;
  alignas(1024) std::uint8_t tiles[Config::kStages][kTile_bytes];  // K, then V
  // E4M3 rows may have a descale each.
  alignas(16) float descales[Config::kIsE4m3 ? Config::kStages : 1][2]
                            [Config::kIsE4m3 ? kDecodeTileKeys : 1];
  TmaRing<Config::kStages> k;
  TmaRing<Config::kStages> v;
  PartRing parts;
  KnownLengths<Config::kMostKnown> known;  // the finder's
  Part rehearsed;                          // which nobody reads (find_parts)
  cutlass::arch::ClusterBarrier asked;     // for another part
  cutlass::arch::ClusterBarrier judged;    // whether a guess was right
  typename Form::Memory compute;
  cute::conditional_t<Config::kMayCluster, Exchange<Config>, NoExchange> exchange;
};

struct TensorMaps {
  CUtensorMap k, v;
  CUtensorMap q;  // where keys are the rows of MMAs, and caches of 16 bits
};

// Where partial results lie in the workspace.
struct Slots {
  float4* o;             // (slots, slot_rows, Dv / 4)
  float2* statistics;    // likewise, of which some are used: m and l
  std::uint64_t* marks;  // (slots, cluster, passes, the consumer's warps)
  std::uint64_t mark;    // of this launch
};

// A launch's schedule, and where partial results lie.
struct Launch {
  DecodeShape shape;
  Workers workers;
  bool next_may_join;  // the next launch may run beside this one
  bool loads_boxes;    // by TMA; or else row by row
  CacheBoxes boxes;
  CacheBoxes rows;  // boxes of one row
  int slot_rows;
  Slots slots;
  std::uint64_t* tickets;  // of further shares
  std::uint64_t epoch;
};

// A descale of the whole sequence, if there is one.
__device__ inline float descale_of(const Descales& descale, const Part& part) {
  return descale.data != nullptr && descale.per != Descales::Per::row
             ? descale
                   .data[part.sequence * descale.stride.batch + part.kv_head * descale.stride.head]
             : 1.0f;
}

// What scores are multiplied by: the scale, and the descales that are of the whole sequence.
template <typename Config>
__device__ __forceinline__ float scale_of(const Params& p, const Part& part) {
  float scale = p.scale;
  if constexpr (Config::kTakesE4m3Queries) {
    scale *= descale_of(p.q_descale, part);
  }
  return Config::kIsE4m3 ? scale * descale_of(p.k_descale, part) : scale;
}

// Whether q is of E4M3.
template <typename Config>
__device__ __forceinline__ bool has_e4m3_queries(const Params& p) {
  return Config::kTakesE4m3Queries && p.dtype == DType::e4m3;
}

// The block's index in its worker.
__device__ inline int rank_in(const Launch& launch) {
  return static_cast<int>(blockIdx.x) & (launch.workers.cluster() - 1);
}

}  // namespace decode
}  // namespace tilewright::cuda
