// What a block of dsv4_spread (spread.cuh) has in SMEM, and how it finds its unit and its rows.
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kRoundTiles = kSpreadPairs * kPairTiles;
inline constexpr int kSpreadThreads = kProducerThreads + kConsumerThreads;
static_assert(kSpreadBlocks == kBlocks, "a block has one column block of O");
static_assert(kSpreadPairs <= kSpreadBlocks);

// P of a pair in memory, as it lies in SMEM. Where the pair has one tile, the other's P is 0.
struct PairP {
  Element p[kPairTiles][kBlock_elements];
  float4 statistics[kPairTiles][kRows];  // the pair's reference and maximum, the tile's two sums
};
static_assert(2 * kSpreadBlocks * sizeof(PairP) <= kSpreadSlots * kRows * kDims * sizeof(float));

struct SpreadStorage {
  alignas(1024) Element p[kSpreadPairs][kPairTiles][kBlock_elements];  // Q's blocks before
  alignas(1024) Element keys[kPairTiles][kBlocks][kBlock_elements];    // V of all tiles behind
  float4 statistics[kSpreadPairs][kPairTiles][kRows];
  alignas(
      8) std::uint8_t scales[kPairTiles][kTileKeys][8];  // of the own pair, where they lie apart
  float2 factors[kSpreadPairs][kRows];                   // of O so far, and of a pair's P V
  float end_factors[kRows];                              // of O at last
  float max[kPairTiles][kRows];                          // of the own pair's scores
  float sinks[kRows];
  std::uint32_t exist[kRoundTiles][kTileKeys / 32];  // a bit for each key that has a row
  Unit unit;
  Unit guessed;
  bool is_guess_right;
  int first_tile;  // of the round
  int end_tile;
  TmaBarrier q_full;
  TmaBarrier p_full[kSpreadPairs];
  TmaBarrier copied[kPairTiles];         // rows of the own pair
  TmaBarrier guess_copied[kPairTiles];   // the same by the guess
  cutlass::arch::ClusterBarrier p_free;  // in all blocks: the place for the own pair's P
  cutlass::arch::ClusterBarrier keys_full[kPairTiles][kQuarters];
  cutlass::arch::ClusterBarrier keys_read;
  cutlass::arch::ClusterBarrier values_full;
  cutlass::arch::ClusterBarrier factors_full;
  cutlass::arch::ClusterBarrier ends_full;
  cutlass::arch::ClusterBarrier unit_found;
  cutlass::arch::ClusterBarrier own_found;  // by the guess, rows of the own pair
  cutlass::arch::ClusterBarrier rows_full;
  cutlass::arch::ClusterBarrier round_done;  // of the producers

  __device__ void init() {
    q_full.init(1);
    for (auto& full : p_full) {
      full.init(1);
    }
    for (int own = 0; own < kPairTiles; ++own) {
      copied[own].init(kTileWarps + kTileKeys);  // warps, and lanes that copy scales
      guess_copied[own].init(kTileWarps + kTileKeys);
    }
    p_free.init(kSpreadBlocks * kProducerWarps);
    for (auto& tile : keys_full) {
      for (auto& full : tile) {
        full.init(2 * kTileWarps);
      }
    }
    keys_read.init(kConsumers * kConsumerWarps);
    values_full.init(kProducerWarps);
    factors_full.init(kRows / 32);
    ends_full.init(kRows / 32);
    unit_found.init(1);
    own_found.init(kProducerWarps);
    rows_full.init(kConsumers * kConsumerWarps);
    round_done.init(kProducerWarps);
    cutlass::arch::fence_barrier_init();
  }

  // Where rows of the round's keys lie, until P of the last pair comes.
  __device__ auto rows() {
    static_assert(kRoundTiles * kTileKeys * sizeof(RowAt) <= sizeof(p[0]));
    static_assert(kSpreadPairs * sizeof(p[0]) - sizeof(p[0]) >= kRows * kDims * sizeof(Element));
    return reinterpret_cast<RowAt(*)[kTileKeys]>(p[kSpreadPairs - 1]);
  }

  // Does the block, by the guess, have a pair, and tile `number` of the round?
  __device__ bool guesses_tile(int number) const {
    return guessed.tokens == 1 && number < min(guessed.end_tile - guessed.first_tile, kRoundTiles);
  }
  __device__ bool guesses_pair() const { return guesses_tile(block_rank() * kPairTiles); }

  // Waits for the rows of the own pair's tile `own`.
  __device__ void wait_for_copies(int own, int round) {
    if (is_guess_right && round == 0) {
      guess_copied[own].wait(0);
    } else {
      copied[own].wait((round - is_guess_right) & 1);
    }
  }

  // Waits until what was copied by a wrong guess is there, and nothing comes to tiles' places
  // later.
  __device__ void wait_for_wrong_copies() {
    for (int own = 0; own < kPairTiles; ++own) {
      if (!is_guess_right && guesses_tile(block_rank() * kPairTiles + own)) {
        guess_copied[own].wait(0);
      }
    }
  }

  __device__ void set_round(int first) {
    first_tile = first;
    end_tile = min(first + kRoundTiles, unit.end_tile);
  }
};
static_assert(sizeof(SpreadStorage) <= 227 * 1024);

// The block's own pair of a round, and how many pairs there are.
struct Round {
  int tiles;
  int pairs;
  bool has_own;
  int first_tile;  // of the item

  __device__ explicit Round(const SpreadStorage& shared)
      : tiles(uniform(shared.end_tile - shared.first_tile)),
        pairs(pairs_of_tiles(tiles)),
        has_own(block_rank() < pairs),
        first_tile(uniform(shared.first_tile)) {}

  // The own pair's tile `own`, counted in the round.
  __device__ static int number(int own) { return block_rank() * kPairTiles + own; }
  __device__ TileAt tile(const SpreadStorage& shared, int own) const {
    return tile_at(shared.unit, first_tile + number(own));
  }
};

// The cluster's unit.
__device__ inline int spread_unit() { return blockIdx.x / kSpreadBlocks; }

// Guesses the cluster's unit before the launch ahead has ended: it has as many keys as there may
// be. If q is not packed, its rows are what will be found. A warp calls it.
__device__ inline void guess_unit(SpreadStorage& shared, const Params& p, const Launch& launch) {
  find_unit(shared.guessed, p, launch, spread_unit(), Finding::guess);
  copy_unit(shared.unit, shared.guessed);
}

// The keys of a source that a unit's only token sees.
__device__ inline SeenKeys seen_keys(const Params& p, const Unit& unit, int source) {
  const Scope& scope = scope_of(p, source);
  return SeenKeys(scope, told_range(scope, unit.request, unit.token0));
}

// Finds the cluster's unit, and whether the guess was right: whether it has the unit's tiles, and
// all keys of its lists. If so, the unit has been guessed but for where its ranges begin and end. A
// warp calls it.
__device__ inline void find_unit(SpreadStorage& shared, const Params& p, const Launch& launch) {
  Unit& unit = shared.unit;
  const Unit& guessed = shared.guessed;
  const int source = this_thread() % 32;
  const int index = spread_unit();
  bool is_same = guessed.tokens == 1;
  if (is_same && source < kFresh && guessed.keys[source] > 0) {
    const Scope& scope = scope_of(p, source);
    const SeenKeys seen(scope, told_keys(scope, unit.request, unit.token0));
    const int keys = seen.end - seen.begin;
    unit.begin[source] = seen.begin;
    unit.keys[source] = keys;
    unit.sees_begin[source][0] = seen.begin;
    unit.sees_end[source][0] = seen.end;
    is_same = is_list(p, source) ? keys == guessed.keys[source]
                                 : tiles_of_keys(keys) == guessed.tiles[source];
  }
  const bool are_same = __all_sync(0xffffffffu, is_same);
  if (!are_same) {
    find_unit(unit, p, launch, index, Finding::search);
  }
  if (this_thread() % 32 == 0) {
    shared.is_guess_right = are_same;
    if (block_rank() == 0) {
      record_item(launch, unit, index);
    }
    unit.index = unit.tokens > 0 ? index : launch.units;
    shared.set_round(unit.first_tile);
  }
}

// Finds the rows of the round's keys, as kWarps warps call it, this one as number `warp`. A warp
// has every kWarps-th 32 keys, and looks up all at once. `without_own` leaves out the own pair's.
template <int kFormats, int kWarps>
class RowFinder {
 public:
  __device__ RowFinder(SpreadStorage& shared, const Params& p, const Launch& launch,
                       const Unit& unit, int warp, bool without_own)
      : shared_(shared),
        p_(p),
        launch_(launch),
        unit_(unit),
        warp_(warp),
        without_own_(without_own) {}

  // Sets which keys those of tiles [first, end) of the unit are, and where memory has the entries
  // of lists.
  __device__ __forceinline__ void begin(int first, int end) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int keys = keys_of(i);
      const int tile = first + keys / kTileKeys;
      source_[i] = kSources;
      if (tile < end && keys < kRoundTiles * kTileKeys) {
        const TileAt at = tile_at(unit_, tile);
        source_[i] = uniform(at.source);
        key_[i] = at.key0 + keys % kTileKeys + this_thread() % 32;
        if (is_list(p_, source_[i])) {
          look_up_[i] = look_up(p_, launch_, unit_, source_[i], key_[i], 0);
        }
      }
    }
  }

  // Finds them. By a guess, ranges are those that a unit of one token sees.
  __device__ __forceinline__ void find(bool is_guess) {
    int place[kEach];
    SeenKeys seen[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      seen[i] = {unit_.begin[source_[i] % kSources], INT_MAX};
      if (is_guess && is_range(i)) {
        seen[i] = seen_keys(p_, unit_, source_[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (source_[i] != kSources) {
        if (!is_list(p_, source_[i])) {
          look_up_[i] = look_up(p_, launch_, unit_, source_[i], key_[i], seen[i].begin);
        }
        place[i] = look_up_[i].at != nullptr ? __ldcg(look_up_[i].at) : look_up_[i].known;
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (source_[i] != kSources) {
        store(i, place[i], seen[i]);
      }
    }
  }

 private:
  static constexpr int kEach = (kRoundTiles * kTileKeys / 32 + kWarps - 1) / kWarps;

  // The first of 32 keys, counted in the round.
  __device__ int keys_of(int i) const {
    constexpr int kPairKeys = kPairTiles * kTileKeys;
    const int keys = (warp_ + i * kWarps) * 32;
    return keys + (without_own_ && keys >= block_rank() * kPairKeys ? kPairKeys : 0);
  }
  __device__ bool is_range(int i) const { return source_[i] < kFresh && !is_list(p_, source_[i]); }

  __device__ __forceinline__ void store(int i, int found, const SeenKeys& seen) const {
    const int source = source_[i];
    const int place =
        key_[i] < seen.end - seen.begin ? checked(p_, launch_, source, found) : kNoRow;
    const std::uint32_t exist = __ballot_sync(0xffffffffu, place != kNoRow);
    if (this_thread() % 32 == 0) {
      (&shared_.exist[0][0])[keys_of(i) / 32] = exist;
    }
    (&shared_.rows()[0][0])[keys_of(i) + this_thread() % 32] =
        row_at(p_, launch_, unit_, source, key_[i], place,
               parts_of(format_of<kFormats>(p_, source)), seen.begin);
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  const Unit& unit_;
  int warp_;
  bool without_own_;
  int source_[kEach];
  int key_[kEach];
  LookUp look_up_[kEach];
};

}  // namespace tilewright::cuda::dsv4
