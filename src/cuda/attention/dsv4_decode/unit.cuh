// What a block or a cluster of dsv4_attention() computes: a part of an item. One warp of each block
// finds it out and leaves it in SMEM.
#pragma once

#include <climits>

#include "cuda/attention/dsv4_decode/schedule.hpp"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/numeric.cuh"
#include "ops/dsv4_attention/params.hpp"

namespace tilewright::cuda::dsv4 {

using Params = Dsv4AttentionParams;
using Scope = Dsv4ScopeParams;

// The keys of an item come from the two scopes and the fresh rows, in this order.
enum Source : int { kWindow, kCompressed, kFresh, kSources };

// A unit of work: a part of an item.
struct Unit {
  int index;  // its number
  int request;
  int token0;  // the item's first token, by its number in the batch entry; packed: in the tensor
  int tokens;  // 0: there is nothing to do
  int fresh0;  // token0 counted from the request's first token
  int head0;
  int heads;
  int part;
  int parts;
  int first_tile;  // of the part, counted through the item's sources
  int end_tile;
  int tiles[kSources];    // of the item
  int begin[kSources];    // of a range: the first position of the item's first tile; of a list: 0
  int keys[kSources];     // of the item
  bool may_have_gaps[2];  // of a scope: positions between its tokens' ranges
  // What each token sees: positions of ranges; a list's token sees all of it.
  int sees_begin[kSources][kMostTokens];
  int sees_end[kSources][kMostTokens];
};

// The launch, beside the call's params.
struct Launch {
  ItemShape shape;
  bool is_packed = false;
  // Is an item's first token known without reading memory? Not where q is packed and items are
  // counted by requests.
  bool knows_tokens = true;
  Divisor items{1};
  int most_parts = 1;                               // of an item
  int units = 0;                                    // items * most_parts
  int whole_units = 0;                              // as Deal has them
  Divisor last_units{1};                            // behind those; at least 1
  Divisor shares{1};                                // blocks that share each of the last units
  bool are_clusters = false;                        // those blocks, which merge at once
  Divisor other_shares{1};                          // without the first; at least 1
  int q_len = 0;                                    // tokens of a request; packed: unused
  Divisor page_size[2] = {Divisor(1), Divisor(1)};  // of the scopes
  Divisor ring[2] = {Divisor(1), Divisor(1)};
  // Partial results: a slot for each unit, if items may have parts, and behind them pair_slots for
  // each of the last units, if blocks share those, or for each unit that a cluster spreads.
  float4* o = nullptr;            // (slots, kRows * kDims / 4), in the threads' order
  float4* statistics = nullptr;   // (slots, kRows): reference, maximum, sum, rounded sum
  ItemRecord* records = nullptr;  // (items), if there is something to merge
  int first_pair_slot = 0;
  int pair_slots = 1;

  __device__ bool is_shared(int unit) const { return shares > 1 && unit >= whole_units; }
  // The first slot of a unit that is shared.
  __device__ int shared_slot(int unit) const {
    return first_pair_slot + (unit - whole_units) * pair_slots;
  }
};

// The key tiles that hold so many keys, and the whole pairs of so many tiles. Here and below
// numbers are assumed not to be negative, so that a division by a power of two is one shift.
__device__ inline int tiles_of_keys(int keys) {
  __builtin_assume(keys >= 0);
  return (keys + kTileKeys - 1) / kTileKeys;
}
__device__ inline int whole_pairs(int tiles) {
  __builtin_assume(tiles >= 0);
  return tiles / kPairTiles;
}

// threadIdx.x, which is read where it is needed: what follows from it is in no register meanwhile.
// O, S and rows on their way leave few.
__device__ inline int this_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0);
  return thread;
}

// The block's number in its cluster, read in the same way. A block without others is number 0.
__device__ inline int block_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  __builtin_assume(rank >= 0);
  return rank;
}

// Brings a line of memory to L2. Whoever writes it later writes it there.
inline constexpr int kLine_bytes = 128;
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// A value that all lanes of the warp have, in a uniform register.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Neither a request nor a token is negative.
__device__ inline std::int64_t at(const TokenStrides& stride, int request, int token) {
  return static_cast<unsigned>(request) * stride.batch +
         static_cast<unsigned>(token) * stride.token;
}

// The request whose token `token` of a packed tensor is; -1 if it is behind the last one. A warp
// calls it.
__device__ inline int request_of(const int* cu_seqlens, int batch, int token) {
  int before = 0;
#pragma unroll 1
  for (int i = this_thread() % 32; i < batch; i += 32) {
    before += cu_seqlens[i + 1] <= token;
  }
  const int request = __reduce_add_sync(0xffffffffu, before);
  return request < batch && token >= cu_seqlens[0] ? request : -1;
}

// The number of this block among those that share one of the last units.
__device__ inline int share_number(const Launch& launch) {
  return launch.are_clusters ? block_rank() : blockIdx.x / launch.last_units;
}

// The block's next unit behind unit `before`, a whole one or at last a shared one; launch.units: it
// has no more. The first one is behind unit before_first().
__device__ inline int before_first() { return static_cast<int>(blockIdx.x - gridDim.x); }
__device__ inline int unit_behind(const Launch& launch, int before) {
  const int next = before + static_cast<int>(gridDim.x);
  if (next < launch.whole_units) {
    return next;
  }
  const int number = share_number(launch);
  const bool has_share = before < launch.whole_units && launch.shares > 1 && number < launch.shares;
  if (!has_share) {
    return launch.units;
  }
  const int block = static_cast<int>(blockIdx.x);
  return launch.are_clusters ? block / launch.shares
                             : launch.whole_units + block - number * launch.last_units;
}

// The positions that a cache with this scope has.
__device__ inline int capacity_of(const Scope& scope) {
  const std::int64_t capacity = std::int64_t{scope.max_pages} * scope.page_size;
  return scope.ring > 0 || capacity > INT_MAX ? INT_MAX : static_cast<int>(capacity);
}

// How a warp finds a unit. A rehearsal and a guess come ahead of a search, read no memory, and ask
// L2 for what the search will read. A rehearsal's unit has no rows: what counts is that its code
// has been executed. A guess's unit has as many keys as there may be; where q is packed, it has no
// rows.
enum class Finding { search, rehearsal, guess };

// What memory says of the keys of a scope, which may be absent, that a token sees.
struct ToldKeys {
  int begin = 0;
  int end = 0;
};

// Of a token and a scope whose keys are a range.
__device__ inline ToldKeys told_range(const Scope& scope, int request, int token) {
  return {
      scope.range_begin != nullptr ? scope.range_begin[at(scope.begin_stride, request, token)] : 0,
      scope.range_end[at(scope.end_stride, request, token)]};
}

// Of a token and a scope that is there.
__device__ inline ToldKeys told_keys(const Scope& scope, int request, int token) {
  if (scope.keys == Scope::Keys::list) {
    return {0, scope.list_lengths != nullptr ? scope.list_lengths[request] : scope.most_keys};
  }
  return told_range(scope, request, token);
}

// The same in two steps, for a warp that finds the addresses before memory may be read; told_keys()
// takes fewer instructions. Of a null pointer's number the value is known: 0, or known_end.
struct ToldAt {
  const int* begin = nullptr;
  const int* end = nullptr;
  int known_end = 0;

  __device__ ToldAt(const Scope& scope, int request, int token) {
    if (scope.rows == nullptr) {
      return;
    }
    if (scope.keys == Scope::Keys::list) {
      end = scope.list_lengths != nullptr ? scope.list_lengths + request : nullptr;
      known_end = scope.most_keys;
    } else {
      begin = scope.range_begin != nullptr
                  ? scope.range_begin + at(scope.begin_stride, request, token)
                  : nullptr;
      end = scope.range_end + at(scope.end_stride, request, token);
    }
  }

  __device__ ToldKeys read() const {
    return {begin != nullptr ? *begin : 0, end != nullptr ? *end : known_end};
  }
  __device__ void prefetch() const {
    if (begin != nullptr) {
      prefetch_line(begin);
    }
    if (end != nullptr) {
      prefetch_line(end);
    }
  }
};

// What a token sees: positions [begin, end).
struct SeenKeys {
  int begin;
  int end;

  SeenKeys() = default;
  __device__ SeenKeys(int begin, int end) : begin(begin), end(end) {}
  __device__ SeenKeys(const Scope& scope, const ToldKeys& told) {
    const bool is_list = scope.keys == Scope::Keys::list;
    end = max(0, min(is_list ? scope.most_keys : capacity_of(scope), told.end));
    begin = max(max(0, told.begin), end - scope.most_keys);
    end = max(begin, end);
  }
};

// The rows of an item, as a Unit has them.
struct ItemRows {
  int request = 0;
  int token0 = 0;
  int tokens = 0;
  int fresh0 = 0;
};

// Brings a list's entries, or the block table's, of the item's first token to L2. All lanes of a
// warp call it.
__device__ inline void prefetch_entries(const ItemRows& rows, const Scope& scope) {
  const int first = this_thread() % 32 * static_cast<int>(kLine_bytes / sizeof(int));
  if (scope.rows == nullptr) {
    return;
  }
  if (scope.keys == Scope::Keys::list) {
    if (first < scope.most_keys) {
      prefetch_line(scope.indices + at(scope.indices_stride, rows.request, rows.token0) + first);
    }
  } else if (scope.block_table != nullptr && first < scope.max_pages) {
    prefetch_line(scope.block_table + rows.request * scope.table_stride + first);
  }
}

// Sets what the item's tokens see of a scope, and returns its key tiles.
__device__ inline int set_keys(Unit& unit, int tokens, int source, const Scope& scope,
                               const ToldKeys& told) {
  const int lane = this_thread() % 32;
  const auto [begin, end] = SeenKeys(scope, told);
  const bool counts = lane < tokens && end > begin;
  const int first = __reduce_min_sync(0xffffffffu, counts ? begin : INT_MAX);
  const int last = __reduce_max_sync(0xffffffffu, counts ? end : 0);
  const int last_begin = __reduce_max_sync(0xffffffffu, counts ? begin : 0);
  const int first_end = __reduce_min_sync(0xffffffffu, counts ? end : INT_MAX);
  const int keys = last > 0 ? last - first : 0;
  const int tiles = tiles_of_keys(keys);
  if (lane < tokens) {
    unit.sees_begin[source][lane] = begin;
    unit.sees_end[source][lane] = end;
  }
  if (lane == 0) {
    unit.begin[source] = last > 0 ? first : 0;
    unit.keys[source] = keys;
    unit.may_have_gaps[source] = last_begin > first_end;
    unit.tiles[source] = tiles;
  }
  return tiles;
}

// The same of fresh rows, which a token sees up to its own.
__device__ inline int set_fresh(Unit& unit, const ItemRows& rows, bool has_fresh) {
  const int lane = this_thread() % 32;
  const int keys = has_fresh ? rows.fresh0 + rows.tokens : 0;
  if (lane < rows.tokens) {
    unit.sees_begin[kFresh][lane] = 0;
    unit.sees_end[kFresh][lane] = has_fresh ? rows.fresh0 + lane + 1 : 0;
  }
  if (lane == 0) {
    unit.begin[kFresh] = 0;
    unit.keys[kFresh] = keys;
    unit.tiles[kFresh] = keys > 0;
  }
  return keys > 0;
}

// Finds and sets which rows the item has. All lanes of a warp call it.
__device__ inline ItemRows find_rows(Unit& unit, const Params& p, const Launch& launch, int item,
                                     Finding how) {
  const ItemShape& shape = launch.shape;
  const int tile = item / shape.head_tiles;
  const int head0 = (item - tile * shape.head_tiles) * kRows;
  ItemRows rows;
  int first = 0;  // the request's first token in the tensor
  const int* const cu_seqlens = p.packed_q.cu_seqlens;
  if (shape.is_by_token) {
    rows.token0 = tile;
    if (how == Finding::search) {
      const int request = request_of(cu_seqlens, p.batch, tile);
      rows.tokens = request >= 0;
      first = rows.tokens > 0 ? cu_seqlens[request] : 0;
      rows.request = max(request, 0);
    }
  } else {
    rows.request = tile / shape.token_tiles;
    const int token0 = (tile - rows.request * shape.token_tiles) * shape.tile_tokens;
    int len = launch.q_len;
    if (launch.is_packed && how == Finding::search) {
      first = cu_seqlens[rows.request];
      len = cu_seqlens[rows.request + 1] - first;
    }
    rows.token0 = first + token0;
    const bool has_tokens = how == Finding::search || (how == Finding::guess && !launch.is_packed);
    rows.tokens = has_tokens ? max(0, min(shape.tile_tokens, len - token0)) : 0;
  }
  rows.fresh0 = rows.token0 - first;
  if (threadIdx.x % 32 == 0) {
    unit.request = rows.request;
    unit.token0 = rows.token0;
    unit.fresh0 = rows.fresh0;
    unit.head0 = head0;
    unit.heads = min(shape.tile_heads, p.heads - head0);
  }
  return rows;
}

// Sets which keys the unit has, whose item's rows are found. All lanes of a warp call it: lane i
// asks for what token i sees, of both scopes before one is used.
__device__ inline void find_keys(Unit& unit, const Params& p, const Launch& launch,
                                 const ItemRows& rows, int part, Finding how) {
  const int lane = this_thread() % 32;
  const bool has_token = lane < rows.tokens;
  const ToldAt window_at(p.window, rows.request, rows.token0 + lane);
  const ToldAt compressed_at(p.compressed, rows.request, rows.token0 + lane);
  ToldKeys window;
  ToldKeys compressed;
  if (how == Finding::search) {
    wait_for_launch_before();
    if (has_token) {
      window = window_at.read();
      compressed = compressed_at.read();
    }
  } else {
    if (launch.knows_tokens) {
      if (lane == 0) {
        window_at.prefetch();
        compressed_at.prefetch();
      }
      prefetch_entries(rows, p.window);
      prefetch_entries(rows, p.compressed);
    }
    if (has_token) {
      window.end = p.window.rows != nullptr ? p.window.most_keys : 0;
      compressed.end = p.compressed.rows != nullptr ? p.compressed.most_keys : 0;
    }
  }
  const int tiles = set_keys(unit, rows.tokens, kWindow, p.window, window) +
                    set_keys(unit, rows.tokens, kCompressed, p.compressed, compressed) +
                    set_fresh(unit, rows, p.fresh.rows != nullptr);
  if (lane == 0) {
    const int parts = launch.most_parts == 1
                          ? 1
                          : min(parts_of_tiles(tiles, launch.shape.head_tiles), launch.most_parts);
    unit.parts = parts;
    unit.part = part;
    unit.tokens = part < parts ? rows.tokens : 0;
    unit.first_tile = 0;
    unit.end_tile = tiles;
    if (parts > 1) {
      const int pairs = pairs_of_tiles(tiles);
      unit.first_tile = first_pair(part, parts, pairs) * kPairTiles;
      unit.end_tile = min(tiles, first_pair(part + 1, parts, pairs) * kPairTiles);
    }
  }
  __syncwarp();
}

// Finds out what unit `index` is. All lanes of a warp call it.
__device__ inline void find_unit(Unit& unit, const Params& p, const Launch& launch, int index,
                                 Finding how) {
  const int part = index / launch.items;
  const ItemRows rows = find_rows(unit, p, launch, index - part * launch.items, how);
  find_keys(unit, p, launch, rows, part, how);
}

// Tells the launch that merges of the item of a unit that has been found, if that is its first
// part. One thread calls it.
__device__ inline void record_item(const Launch& launch, const Unit& unit, int index) {
  if (launch.records != nullptr && index < launch.items) {
    launch.records[index] = {
        .request = unit.request,
        .token0 = unit.token0,
        .tokens = unit.tokens,
        .head0 = unit.head0,
        .heads = unit.heads,
        .parts = unit.parts,
        .tiles = unit.tiles[kWindow] + unit.tiles[kCompressed] + unit.tiles[kFresh]};
  }
}

// Finds the block's next unit behind unit `before` that has rows. If there is none, its index is
// launch.units. A rehearsal looks at one. All lanes of a warp call it.
__device__ inline void find_unit_behind(Unit& unit, const Params& p, const Launch& launch,
                                        int before, Finding how) {
  int index = unit_behind(launch, before);
  if (how == Finding::search && launch.is_packed) {  // lengths of q tell which rows an item has
    wait_for_launch_before();
  }
  while (index < launch.units) {
    find_unit(unit, p, launch, index, how);
    if (how != Finding::search) {
      break;
    }
    if (threadIdx.x % 32 == 0 && (!launch.is_shared(index) || share_number(launch) == 0)) {
      record_item(launch, unit, index);
    }
    if (uniform(unit.tokens) > 0) {
      break;
    }
    index = unit_behind(launch, index);
    __syncwarp();  // all lanes have read the tokens
  }
  if (threadIdx.x % 32 == 0) {
    unit.index = index;
  }
}

// Does a token of the item see a position of a scope?
__device__ inline bool is_seen(const Unit& unit, int source, int position) {
  for (int token = 0; token < unit.tokens; ++token) {
    if (position >= unit.sees_begin[source][token] && position < unit.sees_end[source][token]) {
      return true;
    }
  }
  return false;
}

// A key tile: its source, and its first key there.
struct TileAt {
  int source;
  int key0;
};

// Where a unit's sources end among its tiles.
struct SourceEnds {
  int window;
  int compressed;

  __device__ explicit SourceEnds(const Unit& unit)
      : window(unit.tiles[kWindow]), compressed(window + unit.tiles[kCompressed]) {}

  __device__ TileAt tile_at(int tile) const {
    const int source = (tile >= window) + (tile >= compressed);
    const int before = source == kWindow ? 0 : source == kCompressed ? window : compressed;
    return {source, (tile - before) * kTileKeys};
  }
};

__device__ inline TileAt tile_at(const Unit& unit, int tile) {
  return SourceEnds(unit).tile_at(tile);
}

// A row of the item.
struct Row {
  int token;  // counted as Unit::token0
  int head;
  bool exists;
};

__device__ inline Row row_of(const Unit& unit, const ItemShape& shape, int row) {
  const int token = row / shape.tile_heads;
  const int head = row - token * shape.tile_heads;
  return {.token = unit.token0 + token,
          .head = unit.head0 + head,
          .exists = token < unit.tokens && head < unit.heads};
}

}  // namespace tilewright::cuda::dsv4
