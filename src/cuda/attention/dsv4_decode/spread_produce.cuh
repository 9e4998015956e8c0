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
  int ticket;
  TmaBarrier q_full;
  TmaBarrier p_full[kSpreadPairs];
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
  // Do the guessed unit's tiles have the sources of the job's? Its keys may be more.
  __device__ bool has_guessed_tiles() const {
    bool are_same = guessed.tokens > 0 && guessed.index == job.unit.index &&
                    guessed.first_tile == job.unit.first_tile &&
                    guessed.end_tile == job.unit.end_tile;
    for (int source = 0; source < kSources; ++source) {
      are_same &= guessed.tiles[source] == job.unit.tiles[source];
    }
    return are_same;
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

  LaneRow() = default;
  __device__ explicit LaneRow(const RowAt& row)
      : data_(row.data), scales_(kParts.has_planes ? row.scales : row.data + kParts.data_bytes()) {}

  __device__ Scales scales() const { return F::scales(scales_, quarter()); }
  __device__ Raw load(int group) const { return F::load(data_ + quarter() * F::kLane_bytes, group); }

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

// The values of a coded group of a row, whatever its scale.
template <KvRowFormat kFormat>
__device__ __forceinline__ SixteenValues values_of(const LaneRow<kFormat>& row, int group) {
  const auto scales = row.scales();
  SixteenValues values = Format<kFormat>::widen(row.load(group), group, scales);
  if constexpr (requires { scales.rest(0); }) {
    values.multiply(scales.rest(group));
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
    for (int round = 0;; ++round) {
      bring_keys(round);
      const Job& job = shared_.job;
      if (uniform(job.unit.index) >= launch_.units) {
        return;
      }
      const Round its(job);
#pragma unroll
      for (int i = 0; i < kLocated; ++i) {
        locate_value(its, i);
      }
      bring_values(its, round);
      if (uniform(job.end_tile) == uniform(job.unit.end_tile)) {
        return;
      }
      arrive(shared_.round_done);
    }
  }

 private:
  static constexpr int kLocated = 3;

  // The first key, in each of a round's tiles, of which the warp brings V.
  __device__ static int value_key() { return this_thread() / 32 * kPassKeys; }

  // K: this producer's tile of the own pair. In the first round a tile of a list's keys is loaded
  // by the guess, and its rows are on their way when the unit is found.
  __device__ __forceinline__ void bring_keys(int round) const {
    const Job& job = shared_.job;
    bool is_guess = round == 0;
    while (true) {
      if (!is_guess) {
        shared_.job_full.wait(round & 1);
        if (uniform(job.unit.index) >= launch_.units) {
          return;
        }
      }
      const Unit& unit = is_guess ? shared_.guessed : job.unit;
      const int first = uniform(is_guess ? unit.first_tile : job.first_tile);
      const int end = uniform(is_guess ? unit.end_tile : job.end_tile);
      const int tile = first + block_rank() * kPairTiles + KeyTile::number();
      const TileAt at = tile_at(unit, tile);
      const bool exists = tile < min(end, first + kRoundTiles);
      bool is_done = false;
      if (exists && (!is_guess || is_list(p_, at.source))) {
        const RowAt row = locate_key(unit, at, tile - first, is_guess);
        with_format<kFormats>(format_of<kFormats>(p_, at.source), [&](auto format) {
          const LaneRow<format.value> rows[kPasses] = {
              LaneRow<format.value>(row_of_lane(row, 0)),
              LaneRow<format.value>(row_of_lane(row, kPassKeys))};
          is_done = bring_tile(rows, is_guess);
        });
      }
      if (is_done || !is_guess) {
        return;
      }
      is_guess = false;
    }
  }

  // The row of key lane % 16 of the warp's keys of a tile, number `number` of the round.
  __device__ __forceinline__ RowAt locate_key(const Unit& unit, const TileAt& at, int number,
                                              bool is_guess) const {
    const int key = first_key(this_thread()) + this_thread() % kWarpKeys;
    const KvRowFormat format = format_of<kFormats>(p_, at.source);
    int place;
    if (is_guess) {
      const LookUp its = look_up(p_, launch_, unit, at.source, at.key0 + key);
      place = checked(p_, launch_, at.source, its.at != nullptr ? __ldcg(its.at) : its.known);
    } else {
      place = shared_.job.places.of[number][key];
    }
    return row_at(p_, launch_, unit, at.source, at.key0 + key, place, parts_of(format));
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

  // Of V, a warp's rows are numbered: eight of each tile of the round. This is the lane's row i.
  __device__ __forceinline__ void locate_value(const Round& its, int i) {
    const Job& job = shared_.job;
    const int row = i * 32 + this_thread() % 32;
    const int number = row / kPassKeys;
    const int key = value_key() + row % kPassKeys;
    located_[i] = RowAt{};
    if (number < its.tiles) {
      const TileAt at = tile_at(job.unit, its.first_tile + number);
      const KvRowFormat format = format_of<kFormats>(p_, at.source);
      located_[i] = row_at(p_, launch_, job.unit, at.source, at.key0 + key,
                           job.places.of[number][key], parts_of(format));
    }
    __syncwarp();
  }

  // Of tile `number`, the row of which this lane loads a share.
  __device__ __forceinline__ RowAt value_row(int number) const {
    const int first = number * kPassKeys;
    RowAt row = located_[0];
#pragma unroll
    for (int k = 1; k < kLocated; ++k) {
      row = first / 32 == k ? located_[k] : row;
    }
    return row_of_lane(row, first % 32);
  }

  template <KvRowFormat kFormat>
  __device__ __forceinline__ bool bring_tile(const LaneRow<kFormat> (&rows)[kPasses],
                                             bool is_guess) const {
    constexpr int kCoded = LaneRow<kFormat>::kCodedGroups;
    const LanePlace to(shared_.keys[KeyTile::number()][0]);
    typename LaneRow<kFormat>::Raw raw[kGroups][kPasses];
    typename LaneRow<kFormat>::Scales scales[kPasses];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = block_of_quarter(i / kConsumers, i % kConsumers);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (group < kCoded) {
          raw[group][pass] = rows[pass].load(group);
        } else {
          rows[pass].copy(group, to, group, pass);
        }
        if (i == 0) {
          scales[pass] = rows[pass].scales();
        }
      }
      cute::cp_async_fence();
    }
    if (is_guess) {
      shared_.job_full.wait(0);
      if (!shared_.has_guessed_tiles()) {
        cute::cp_async_wait<0>();
        return false;
      }
    }
    const bool exceeds =
        __any_sync(0xffffffffu, scales[0].some_exceed() || scales[1].some_exceed());
    if (exceeds) {
#pragma unroll 1
      for (int group = 0; group < kCoded; ++group) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          to.store(group, pass, values_of(rows[pass], group));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = block_of_quarter(i / kConsumers, i % kConsumers);
      if (group < kCoded && !exceeds) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          to.store(group, pass, Format<kFormat>::widen(raw[group][pass], group, scales[pass]));
        }
      }
      if (i % kConsumers == kConsumers - 1) {
        if (kCoded == 0 || i == kGroups - 1) {
          wait_for_copies(kGroups - 1 - i);
        }
        arrive(shared_.keys_full[KeyTile::number()][i / kConsumers]);
      }
    }
    return true;
  }

  // Returns when at most `groups` groups of copies are under way.
  __device__ static void wait_for_copies(int groups) {
    if (groups == 6) {
      cute::cp_async_wait<6>();
    } else if (groups == 4) {
      cute::cp_async_wait<4>();
    } else if (groups == 2) {
      cute::cp_async_wait<2>();
    } else {
      cute::cp_async_wait<0>();
    }
  }

  // V: the block's columns of all tiles. Of a tile that does not exist, they are zeros.
  __device__ __forceinline__ void bring_values(const Round& its, int round) const {
    if constexpr (kDsv4Formats[kFormats].has_one()) {
      bring_columns<kDsv4Formats[kFormats].first(), kRoundTiles>(0, round);
    } else {
      shared_.keys_read.wait(round & 1);
#pragma unroll 1
      for (int i = 0; i < its.pairs * kPairTiles; ++i) {
        const int tile = min(its.first_tile + i, shared_.job.end_tile - 1);
        with_format<kFormats>(
            format_of<kFormats>(p_, tile_at(shared_.job.unit, tile).source),
            [&](auto format) { bring_columns<format.value, 1>(i, round); });
      }
    }
    arrive(shared_.values_full);
  }

  // The same of kTiles tiles of one format, at once.
  template <KvRowFormat kFormat, int kTiles>
  __device__ __forceinline__ void bring_columns(int first, int round) const {
    using Row = LaneRow<kFormat>;
    const int group = block_rank();
    const LanePlace to(shared_.keys[0][0], value_key());
    const auto row_of_tile = [&](int i) { return Row(value_row(first + i)); };
    if (group >= Row::kCodedGroups) {
      shared_.keys_read.wait(round & 1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        row_of_tile(i).copy(group, to, first + i);
      }
      cute::cp_async_wait<0>();
      return;
    }
    typename Row::Raw raw[kTiles];
    typename Row::Scales scales[kTiles];
    bool exceeds = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const Row row = row_of_tile(i);
      scales[i] = row.scales();
      raw[i] = row.load(group);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      exceeds |= scales[i].some_exceed();
    }
    exceeds = __any_sync(0xffffffffu, exceeds);
    shared_.keys_read.wait(round & 1);
    if (exceeds) {
#pragma unroll 1
      for (int i = 0; i < kTiles; ++i) {
        to.store(first + i, 0, values_of(row_of_tile(i), group));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      to.store(first + i, 0, Format<kFormat>::widen(raw[i], group, scales[i]));
    }
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  RowAt located_[kLocated];
};

}  // namespace tilewright::cuda::dsv4
