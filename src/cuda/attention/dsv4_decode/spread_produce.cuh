// The producers of dsv4_spread (spread.cuh), and what its block has in SMEM: two warpgroups that
// bring K of the block's own pair, and the block's columns of V of all tiles.
//
// A warp has 16 keys of the own pair and 8 of each of a round's tiles, 96 rows: each lane finds
// three of them, and shuffles give the lanes that load a row its place.
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kRoundTiles = kSpreadPairs * kPairTiles;
inline constexpr std::uint32_t kTilesSync = kConsumersSync + 1;  // and the next one
inline constexpr int kSpreadThreads = kProducerThreads + kConsumerThreads;
static_assert(kSpreadBlocks == kBlocks, "a block has one column block of O");
static_assert(kSpreadPairs <= kSpreadBlocks);
static_assert(kRoundTiles <= kStretchTiles);

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
  float max[kPairTiles][kRows];  // of the own pair's scores
  Job job;                       // of a round
  Unit guessed;
  bool is_guessed;  // Was the guess right?
  int ticket;
  TmaBarrier q_full;
  TmaBarrier p_full[kSpreadPairs];
  TmaBarrier rows_full[kProducerWarps];
  cutlass::arch::ClusterBarrier p_free;  // in all blocks: the place for the own pair's P
  cutlass::arch::ClusterBarrier keys_full[kPairTiles][kQuarters];
  cutlass::arch::ClusterBarrier keys_read;
  cutlass::arch::ClusterBarrier values_full;
  cutlass::arch::ClusterBarrier job_full;
  cutlass::arch::ClusterBarrier round_done;  // of the producers

  __device__ void init() {
    q_full.init(1);
    for (auto& full : p_full) {
      full.init(1);
    }
    for (auto& full : rows_full) {
      full.init(1);
    }
    p_free.init(kSpreadBlocks * kConsumerWarps);
    for (auto& tile : keys_full) {
      for (auto& full : tile) {
        full.init(kTileWarps);
      }
    }
    keys_read.init(kConsumers * kConsumerWarps);
    values_full.init(kProducerWarps);
    job_full.init(kConsumers * kConsumerWarps);
    round_done.init(kProducerWarps);
    cutlass::arch::fence_barrier_init();
  }

  // Has Q been loaded for the guessed unit?
  __device__ bool has_guessed_q() const {
    const int pairs = pairs_of_tiles(guessed.end_tile - guessed.first_tile);
    return guessed.tokens > 0 && block_rank() < pairs;
  }
  // Are the guessed unit's tiles those of the job's, and all keys of its lists? A warp calls it.
  __device__ bool has_guessed_tiles(const Params& p) const {
    const int source = this_thread() % 32 % kSources;
    const bool is_same = guessed.tiles[source] == job.unit.tiles[source] &&
                         (!is_list(p, source) || guessed.keys[source] == job.unit.keys[source]);
    return __all_sync(0xffffffffu, is_same && guessed.tokens > 0 &&
                                       guessed.first_tile == job.unit.first_tile &&
                                       guessed.end_tile == job.unit.end_tile);
  }
};
static_assert(sizeof(SpreadStorage) <= 227 * 1024);

// The block's own pair of a round, and how many pairs there are.
struct Round {
  int tiles;
  int pairs;
  bool has_own;
  int first_tile;  // of the item
  int own_tile;    // the own pair's first

  __device__ explicit Round(const Job& job)
      : tiles(uniform(job.end_tile - job.first_tile)),
        pairs(pairs_of_tiles(tiles)),
        has_own(block_rank() < pairs),
        first_tile(uniform(job.first_tile)),
        own_tile(first_tile + block_rank() * kPairTiles) {}
};

// A lane's share of a row: 16 dims of each group.
template <KvRowFormat kFormat>
class LaneRow {
 public:
  using F = Format<kFormat>;
  using Raw = typename F::Raw;
  using Scales = typename F::Scales;
  static constexpr KvRowParts kParts = parts_of(kFormat);
  static constexpr int kCodedGroups = kParts.coded_dims / kBlockDims;  // the others are BF16

  // What is copied of a row to SMEM: all but scales that lie apart.
  static constexpr int kCopied_bytes = kParts.has_planes ? kParts.data_bytes() : kParts.row_bytes();
  static_assert(kCopied_bytes % 16 == 0);

  __device__ explicit LaneRow(const RowAt& row)
      : data_(row.data), scales_(kParts.has_planes ? row.scales : row.data + kParts.data_bytes()) {}

  template <typename From = FromMemory>
  __device__ Scales scales() const {
    return F::template scales<From>(scales_, quarter());
  }
  template <typename From = FromMemory>
  __device__ Raw load(int group) const {
    return F::template load<From>(data_ + quarter() * F::kLane_bytes, group);
  }

  // Copies a BF16 group to a column block in SMEM, asynchronously.
  __device__ void copy(int group, const LanePlace& to, int block, int pass = 0) const {
    const std::uint8_t* const from =
        data_ + kParts.code_bytes() + (group - kCodedGroups) * 128 + quarter() * 32;
    copy_async<16>(to.vector(block, pass, 0), from, true);
    copy_async<16>(to.vector(block, pass, 1), from + 16, true);
  }

 private:
  __device__ static int quarter() { return this_thread() % 4; }

  const std::uint8_t* data_;
  const std::uint8_t* scales_;
};

// The values of a coded group. `exceeds` says whether a row of the warp has a scale that does.
template <KvRowFormat kFormat>
__device__ __forceinline__ SixteenValues widened(const typename LaneRow<kFormat>::Raw& raw,
                                                 int group,
                                                 const typename LaneRow<kFormat>::Scales& scales,
                                                 bool exceeds) {
  SixteenValues values = Format<kFormat>::widen(raw, group, scales);
  if constexpr (requires { scales.rest(0); }) {
    if (exceeds) {
      values.multiply(scales.rest(group));
    }
  }
  return values;
}

__device__ inline void set_round(Job& job, int first_tile) {
  job.first_tile = first_tile;
  job.end_tile = min(first_tile + kRoundTiles, job.unit.end_tile);
}

// The producers: two warpgroups, of which each has one tile of the own pair.
template <int kFormats>
class SpreadProducer {
 public:
  __device__ SpreadProducer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run() {
    const Job& job = shared_.job;
    const KeyGuess guess = guess_key();
    wait_for_launch_before();
    for (int round = 0;; ++round) {
#pragma unroll 1
      for (bool is_guess = round == 0; !bring_keys(round, is_guess, guess); is_guess = false) {
      }
      if (uniform(job.unit.index) >= launch_.units) {
        return;
      }
      const Round its(job);
      bring_values(its, round);
      if (uniform(job.end_tile) == uniform(job.unit.end_tile)) {
        return;
      }
      arrive(shared_.round_done);
    }
  }

 private:
  // What is known of the warp's key lane % 16 of the own tile before the launch ahead has ended.
  struct KeyGuess {
    bool exists;
    TileAt at;
    LookUp slot;  // if it is one of a list
  };

  __device__ __forceinline__ KeyGuess guess_key() const {
    const Unit& unit = shared_.guessed;
    const int tile = unit.first_tile + number_of_tile();
    KeyGuess guess{.exists = tile < unit.end_tile && number_of_tile() < kRoundTiles,
                   .at = tile_at(unit, tile)};
    if (is_list(p_, guess.at.source)) {
      guess.slot = look_up(p_, launch_, unit, guess.at.source, guess.at.key0 + own_key(), 0);
    }
    return guess;
  }

  // The own tile in the round, and the lane's key there.
  __device__ static int number_of_tile() { return block_rank() * kPairTiles + KeyTile::number(); }
  __device__ static int own_key() { return first_key(this_thread()) + this_thread() % kWarpKeys; }

  // The first key, in each of a round's tiles, of which the warp brings V.
  __device__ static int value_key() { return this_thread() / 32 * kPassKeys; }

  // K: this producer's tile of the own pair. In the first round rows are copied by the guess, and
  // are on their way while the unit is found. If the guess is wrong, they are copied again.
  // Returns whether they are those that are wanted.
  __device__ __forceinline__ bool bring_keys(int round, bool is_guess, const KeyGuess& guess) {
    TileAt at = guess.at;
    RowAt row;
    if (is_guess) {
      if (!guess.exists || shared_.guessed.tokens != 1) {
        return false;
      }
      row = row_of(guess);
    } else {
      const Job& job = shared_.job;
      shared_.job_full.wait(round & 1);
      const int number = number_of_tile();
      const int tile = uniform(job.first_tile) + number;
      if (uniform(job.unit.index) >= launch_.units || tile >= uniform(job.end_tile)) {
        return true;
      }
      at = tile_at(job.unit, tile);
      row = locate(job.unit, at, number, own_key());
    }
    bool are_right;
    with_format<kFormats>(format_of<kFormats>(p_, at.source), [&](auto format) {
      are_right = bring_tile<format.value>(row, is_guess);
    });
    return are_right;
  }

  // Its row, if the guess is right. A token sees the last keys of a range.
  __device__ __forceinline__ RowAt row_of(const KeyGuess& guess) const {
    const auto [source, key0] = guess.at;
    const Unit& unit = shared_.guessed;
    const int key = key0 + own_key();
    LookUp its = guess.slot;
    int begin = 0;
    if (!is_list(p_, source)) {
      if (source != kFresh) {
        const Scope& scope = scope_of(p_, source);
        begin = SeenKeys(scope, told_range(unit, scope, 0)).begin;
      }
      its = look_up(p_, launch_, unit, source, key, begin);
    }
    const int place =
        checked(p_, launch_, source, its.at != nullptr ? __ldcg(its.at) : its.known);
    return row_at(p_, launch_, unit, source, key, place,
                  parts_of(format_of<kFormats>(p_, source)), begin);
  }

  // The row of a key of the round's tile `number`, whose places have been found.
  __device__ __forceinline__ RowAt locate(const Unit& unit, const TileAt& at, int number,
                                          int key) const {
    return row_at(p_, launch_, unit, at.source, at.key0 + key, shared_.job.places.of[number][key],
                  parts_of(format_of<kFormats>(p_, at.source)), unit.begin[at.source]);
  }

  // The row that this lane loads a share of, four lanes a row, of those that lanes from `first` on
  // have found.
  __device__ static RowAt row_of_lane(const RowAt& row, int first) {
    const int lane = first + this_thread() % 32 / 4;
    const auto shuffled = [&](const std::uint8_t* address) {
      return reinterpret_cast<const std::uint8_t*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<std::uint64_t>(address), lane));
    };
    return {shuffled(row.data), shuffled(row.scales)};
  }

  // Lanes have rows `row` of keys lane % 16 of the warp. They are copied to the tile's place as they
  // are, and widened from there to there: all have been read before the first is stored.
  template <KvRowFormat kFormat>
  __device__ __forceinline__ bool bring_tile(const RowAt& row, bool is_guess) {
    using Row = LaneRow<kFormat>;
    constexpr int kCoded = Row::kCodedGroups;
    const int warp = this_thread() / 32;
    const LanePlace to(shared_.keys[KeyTile::number()][0]);
    typename Row::Scales scales[kPasses];
    typename Row::Raw raw[kGroups][kPasses];
    uint4 last[kPasses];
    if constexpr (kCoded == 0) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const Row its(row_of_lane(row, pass * kPassKeys));
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          its.copy(group, to, group, pass);
        }
      }
      if (is_guess && !is_right()) {
        cute::cp_async_wait<0>();
        return false;
      }
      cute::cp_async_wait<0>();
    } else {
      auto* const rows = reinterpret_cast<std::uint8_t*>(shared_.keys[KeyTile::number()][0]) +
                         first_key(this_thread()) * Row::kCopied_bytes;
      TmaBarrier& full = shared_.rows_full[warp];
      if (!is_guess) {
        cutlass::arch::fence_view_async_shared();  // what lies there has been read
      }
      if (this_thread() % 32 == 0) {
        full.arrive_and_expect_tx(kWarpKeys * Row::kCopied_bytes);
      }
      __syncwarp();
      if (this_thread() % 32 < kWarpKeys) {
        cute::SM90_BULK_COPY_G2S::copy(row.data, reinterpret_cast<std::uint64_t*>(&full),
                                       rows + this_thread() % kWarpKeys * Row::kCopied_bytes,
                                       Row::kCopied_bytes);
      }
      if constexpr (Row::kParts.has_planes) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          scales[pass] = Row(row_of_lane(row, pass * kPassKeys)).scales();
        }
      }
      full.wait(copies_++ & 1);
      if (is_guess && !is_right()) {
        return false;
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const Row its({rows + (pass * kPassKeys + this_thread() % 32 / 4) * Row::kCopied_bytes});
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          raw[group][pass] = its.template load<FromShared>(group);
        }
        if constexpr (!Row::kParts.has_planes) {
          scales[pass] = its.template scales<FromShared>();
        }
        if constexpr (kCoded < kGroups) {
          last[pass] = its.template load<FromShared>(kGroups).low;
        }
      }
      sync_tile();
    }
    if constexpr (requires { scales[0].rest(0); }) {
      if (__any_sync(0xffffffffu, scales[0].some_exceed() || scales[1].some_exceed())) {
        bring_exceeding<kFormat>(row, to);
        return true;
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = block_of_quarter(i / kConsumers, i % kConsumers);
#pragma unroll
      for (int pass = 0; pass < kPasses && kCoded > 0; ++pass) {
        if (group < kCoded) {
          to.store(group, pass, Format<kFormat>::widen(raw[group][pass], group, scales[pass]));
        } else {
          to.store(group, pass, {raw[group][pass].low, last[pass]});
        }
      }
      if (i % kConsumers == kConsumers - 1) {
        arrive(shared_.keys_full[KeyTile::number()][i / kConsumers]);
      }
    }
    return true;
  }

  // The same of rows of which some have scales that exceed, group by group.
  template <KvRowFormat kFormat>
  __device__ __forceinline__ void bring_exceeding(const RowAt& row, const LanePlace& to) const {
    using Row = LaneRow<kFormat>;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      const Row its(row_of_lane(row, pass * kPassKeys));
      const auto scales = its.scales();
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        to.store(group, pass,
                 group < Row::kCodedGroups
                     ? widened<kFormat>(its.load(group), group, scales, true)
                     : SixteenValues{its.load(group).low, its.load(kGroups).low});
      }
    }
    for (auto& full : shared_.keys_full[KeyTile::number()]) {
      arrive(full);
    }
  }

  // Waits until the unit is found. Is it the one that was guessed?
  __device__ __forceinline__ bool is_right() const {
    shared_.job_full.wait(0);
    return shared_.is_guessed;
  }

  // Waits for the other warps that bring the tile.
  __device__ static void sync_tile() {
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, kTilesSync + KeyTile::number());
  }

  // V: the block's columns of all tiles. Of a tile that does not exist, they are zeros.
  __device__ __forceinline__ void bring_values(const Round& its, int round) const {
    if constexpr (kDsv4Formats[kFormats].has_one()) {
      constexpr KvRowFormat kFormat = kDsv4Formats[kFormats].first();
      constexpr int kLocated = (kRoundTiles * kPassKeys + 31) / 32;
      RowAt located[kLocated];  // a lane finds rows of keys lane % 8 of tiles 4 i + lane / 8
#pragma unroll
      for (int i = 0; i < kLocated; ++i) {
        const int row = i * 32 + this_thread() % 32;
        located[i] = locate_value(its, row / kPassKeys, row % kPassKeys);
      }
      __syncwarp();
      bring_columns<kFormat, kRoundTiles>(0, round, [&](auto i) {
        constexpr int kRow = i * kPassKeys;
        return row_of_lane(located[kRow / 32], kRow % 32);
      });
    } else {
#pragma unroll 1
      for (int i = 0; i < its.pairs * kPairTiles; ++i) {
        const RowAt row = locate_value(its, i, this_thread() % 32 / 4);
        const int tile = min(its.first_tile + i, shared_.job.end_tile - 1);
        with_format<kFormats>(
            format_of<kFormats>(p_, tile_at(shared_.job.unit, tile).source), [&](auto format) {
              bring_columns<format.value, 1>(i, round, [&](auto) { return row; });
            });
      }
    }
    arrive(shared_.values_full);
  }

  // The row of the warp's key `key` of the round's tile `number`.
  __device__ __forceinline__ RowAt locate_value(const Round& its, int number, int key) const {
    const Unit& unit = shared_.job.unit;
    if (number >= its.tiles) {
      return {};
    }
    return locate(unit, tile_at(unit, its.first_tile + number), number, value_key() + key);
  }

  // The same of kTiles tiles of one format at once, where a lane has a share of row_of(i).
  template <KvRowFormat kFormat, int kTiles, typename RowOf>
  __device__ __forceinline__ void bring_columns(int first, int round, const RowOf& row_of) const {
    using Row = LaneRow<kFormat>;
    const int group = block_rank();
    const LanePlace to(shared_.keys[0][0], value_key());
    if (group >= Row::kCodedGroups) {
      shared_.keys_read.wait(round & 1);
      cute::for_each(cute::make_int_sequence<kTiles>{},
                     [&](auto i) { Row(row_of(i)).copy(group, to, first + i); });
      cute::cp_async_wait<0>();
      return;
    }
    typename Row::Raw raw[kTiles];
    typename Row::Scales scales[kTiles];
    bool exceeds = false;
    cute::for_each(cute::make_int_sequence<kTiles>{}, [&](auto i) {
      const Row row(row_of(i));
      scales[i] = row.scales();
      raw[i] = row.load(group);
    });
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      exceeds |= scales[i].some_exceed();
    }
    exceeds = __any_sync(0xffffffffu, exceeds);
    shared_.keys_read.wait(round & 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      to.store(first + i, 0, widened<kFormat>(raw[i], group, scales[i], exceeds));
    }
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  int copies_ = 0;  // of K's rows, which this warp has asked for
};

}  // namespace tilewright::cuda::dsv4
