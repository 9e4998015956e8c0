// The producers of dsv4_attention(): two warpgroups that bring rows of the caches to SMEM as BF16,
// one the first tile of each pair, the other the second. A warp takes 16 keys of a tile, in two
// passes of eight, four lanes a key.
//
//   tile t       load quarters 0, 1 | store 0, load 2 | store 1, load 3 | locate t + 2 | store 2, 3
//   tile t + 2   load quarters 0, 1 | store 0, load 2 | ...
//
// A quarter of a tile's dims is two column blocks, one of each consumer's columns of O. It has
// barriers of its own: P V gives it back while other quarters are still read, and scores begin when
// the first one is there. Two quarters are in registers; kernels for several formats hold one.
// Locating a tile's rows brings them to L2.
#pragma once

#include <cutlass/arch/barrier.h>

#include "cuda/attention/dsv4_decode/lane.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kQuarters = 4;  // of a tile's dims

// The column block of a quarter that is consumer `consumer`'s in P V. A consumer's blocks are
// neighbours two by two.
__device__ constexpr int block_of_quarter(int quarter, int consumer) {
  return quarter / 2 * 4 + consumer * 2 + quarter % 2;
}

// The pair of key tiles in SMEM, by column blocks, and where the rows of some tiles lie, those of
// the next pair at least.
template <int kLocatedTiles>
struct Keys {
  alignas(1024) Element tiles[kPairTiles][kBlocks][kBlock_elements];
  TmaBarrier full[kPairTiles][kQuarters];
  cutlass::arch::ClusterBarrier empty[kQuarters];  // of both tiles
  alignas(16) RowAt located[kPairTiles][kLocatedTiles][kTileKeys];

  // `fill` warps fill a tile, and `read` warps read it.
  __device__ void init(int fill, int read) {
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      for (int tile = 0; tile < kPairTiles; ++tile) {
        full[tile][quarter].init(fill);
      }
      empty[quarter].init(read);
    }
  }
};

// A producer's view of its tile of each pair, which kWarpgroups warpgroups fill.
template <int kWarpgroups, int kLocatedTiles>
struct KeyTileOf {
  Keys<kLocatedTiles>& keys;

  // 0 or 1: which tile of a pair is its own.
  __device__ static int number() { return this_thread() / (kWarpgroups * kWarpgroupThreads); }

  __device__ LanePlace place() const { return LanePlace(keys.tiles[number()][0]); }
  __device__ RowAt* located() const { return keys.located[number()][0]; }
  __device__ TmaBarrier& full(int quarter) const { return keys.full[number()][quarter]; }
  __device__ void wait(int quarter, int pair) const { keys.empty[quarter].wait((pair & 1) ^ 1); }
};
using KeyTile = KeyTileOf<1, 1>;  // of a twin, `located` has half of the rows of two tiles

// Loads every second tile from `tile` up to `end`, all of BF16 rows, which go to SMEM as they are:
// while a quarter is under way, the one before is given to the consumers. `tile` goes on to the
// first one that is not loaded.
__device__ __forceinline__ void copy_run(const KeyTile& to, const Lane<KvRowFormat::bf16>& lane,
                                         int& tile, int end) {
  const LanePlace place = to.place();
  lane.locate(tile, end, to.located(), false);
#pragma unroll 1
  for (; tile < end; tile += kPairTiles) {
    const int pair = lane.pair_of(tile);
    TmaBarrier* under_way = nullptr;
    const auto rows = lane.take(to.located());
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      to.wait(quarter, pair);
#pragma unroll
      for (int i = 0; i < kPasses * kConsumers; ++i) {
        lane.copy(place, i / kConsumers, block_of_quarter(quarter, i % kConsumers), rows);
      }
      cute::cp_async_fence();
      if (under_way != nullptr) {
        cute::cp_async_wait<1>();
        arrive(*under_way);
      }
      under_way = &to.full(quarter);
    }
    lane.locate(tile + kPairTiles, end, to.located(), true);
    cute::cp_async_wait<0>();
    arrive(*under_way);
  }
}

// A lane's share of kHeld quarters of a tile, one or two, on their way to SMEM. When quarter q has
// been stored, q + kHeld takes its place.
template <typename Lane, int kHeld>
struct HeldQuarters {
  static constexpr int kSets = kQuarters / kHeld;
  typename Lane::Raw raw[kHeld][kConsumers][kPasses];
  uint4 last[kHeld == 1 ? kPasses : 1];  // see last_of()

  __device__ __forceinline__ void begin(const typename Lane::Rows& rows) {
#pragma unroll
    for (int i = 0; i < kHeld * kConsumers * kPasses; ++i) {
      const int quarter = i / (kConsumers * kPasses);
      const int consumer = i / kPasses % kConsumers;
      raw[quarter][consumer][i % kPasses] =
          Lane::load(rows, i % kPasses, block_of_quarter(quarter, consumer));
    }
  }

  // Stores all quarters for the consumers, and loads those behind the first kHeld. A set is kHeld
  // quarters; the loop over sets is not unrolled, to keep the code small. When half of the quarters
  // have been stored, half_way() is called.
  template <typename To, typename HalfWay>
  __device__ __forceinline__ void run(const To& to, const LanePlace& place,
                                      const typename Lane::Rows& rows, int pair,
                                      const HalfWay& half_way) {
#pragma unroll 1
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int quarter = set * kHeld + i;
        to.wait(quarter, pair);
        store<0>(place, rows, set, i);
        store<1>(place, rows, set, i);
        arrive(to.full(quarter));
        load_behind(rows, set, i);
      }
      if (set == kSets / 2 - 1) {
        half_way();
      }
    }
  }

 private:
  // The second half of the last group's BF16 values. If two quarters are held, it takes registers
  // of the third one, which has been stored by then.
  __device__ __forceinline__ uint4& last_of(int pass) {
    if constexpr (kHeld == 1) {
      return last[pass];
    } else {
      return raw[0][0][pass].low;
    }
  }

  // Loads what takes the place of quarter `i` of a set: a quarter of the next one, or the last
  // group's second half. Where both go to the same registers, one load takes the address of either:
  // of two loads with opposite predicates, one would wait for the other.
  __device__ __forceinline__ void load_behind(const typename Lane::Rows& rows, int set, int i) {
    const bool is_last = set + 1 == kSets;
    constexpr bool kEither = Lane::kLastIsBf16 && kHeld > 1;
    if (kEither && i == 0) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        raw[0][0][pass] = Lane::load(rows, pass, is_last ? kGroups : block_of_quarter(kHeld, 0));
      }
    }
    if (!is_last) {
#pragma unroll
      for (int k = kEither && i == 0 ? kPasses : 0; k < kConsumers * kPasses; ++k) {
        const int quarter = kSets == 2 ? kHeld + i : set + kHeld;
        raw[i][k / kPasses][k % kPasses] =
            Lane::load(rows, k % kPasses, block_of_quarter(quarter, k / kPasses));
      }
    }
    if constexpr (Lane::kLastIsBf16 && kHeld == 1) {
      if (set == kQuarters - 2) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          last[pass] = Lane::load(rows, pass, kGroups).low;
        }
      }
    }
  }

  // Stores quarter `i` of a set, the column block that is kConsumer's.
  template <int kConsumer>
  __device__ __forceinline__ void store(const LanePlace& place, const typename Lane::Rows& rows,
                                        int set, int i) {
    const int group = block_of_quarter(set * kHeld + i, kConsumer);
    if constexpr (Lane::kLastIsBf16 && kConsumer == kConsumers - 1) {
      if (i == kHeld - 1 && set == kSets - 1) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          place.store(group, pass, {raw[i][kConsumer][pass].low, last_of(pass)});
        }
        return;
      }
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      place.store(group, pass, Lane::F::widen(raw[i][kConsumer][pass], group, rows.scales[pass]));
    }
  }
};

// Stores a tile of which some row has a scale that exceeds: its values are multiplied twice.
template <typename Lane, typename To>
__device__ __forceinline__ void widen_exceeding(const To& to, const LanePlace& place,
                                                const typename Lane::Rows& rows, int pair) {
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    to.wait(quarter, pair);
#pragma unroll 1
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      const int group = block_of_quarter(quarter, consumer);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const auto raw = Lane::load(rows, pass, group);
        if constexpr (Lane::kLastIsBf16) {
          if (group == kGroups - 1) {
            place.store(group, pass, {raw.low, Lane::load(rows, pass, kGroups).low});
            continue;
          }
        }
        place.store(group, pass, widen_any<typename Lane::F>(raw, group, rows.scales[pass]));
      }
    }
    arrive(to.full(quarter));
  }
}

// Loads every second tile from `tile` up to `end()`, all of one coded format. A tile's rows are
// located when half of the tile before is stored. Of the first tile, the quarters that are held are
// loaded before anything else is asked for: all blocks start at once, and memory is the limit then.
template <int kHeld, KvRowFormat kFormat, typename End>
__device__ __forceinline__ void widen_run(const KeyTile& to, const Lane<kFormat>& lane, int& tile,
                                          const End& end) {
  const LanePlace place = to.place();
  HeldQuarters<Lane<kFormat>, kHeld> held;
  lane.locate(tile, end(), to.located(), false);
  bool is_first = true;
#pragma unroll 1
  while (tile < end()) {
    const int pair = lane.pair_of(tile);
    tile += kPairTiles;
    const auto rows = lane.take(to.located());
    held.begin(rows);
    const auto locate_next = [&] { lane.locate(tile, end(), to.located(), true); };
    if (__any_sync(0xffffffffu, rows.scales[0].some_exceed() || rows.scales[1].some_exceed())) {
      locate_next();
      widen_exceeding<Lane<kFormat>>(to, place, rows, pair);
      continue;
    }
    if (is_first) {
      lane.bring_rest(rows, block_of_quarter(kHeld, 0));  // the first group that is not held
      is_first = false;
    }
    held.run(to, place, rows, pair, locate_next);
  }
}

// A pair without a second tile, which would be `tile`: whoever waits for a barrier waits for each
// of its phases.
template <typename To>
__device__ __forceinline__ void pass_absent(const To& to, const Job& job, int tile) {
  if (tile - To::number() < uniform(job.end_tile)) {
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      to.wait(quarter, pair_of(job, tile));
    }
  }
}

// A producer loads its tiles of a job.
template <int kFormats>
__device__ __forceinline__ void produce(const KeyTile& to, const Params& p, const Launch& launch,
                                        const Job& job) {
  int tile = uniform(job.first_tile + KeyTile::number());
  while (tile < uniform(job.end_tile)) {
    const int end = run_end<kFormats>(p, job, tile);
    with_format<kFormats>(format_of<kFormats>(p, tile_at(job.unit, tile).source), [&](auto format) {
      const Lane<format.value> lane(p, launch, job);
      if constexpr (format.value == KvRowFormat::bf16) {
        copy_run(to, lane, tile, end);
      } else {
        constexpr int kHeld = kDsv4Formats[kFormats].has_one() ? 2 : 1;  // as registers allow
        // Of kernels for one format, a run ends with its job, and no register holds that.
        widen_run<kHeld>(to, lane, tile, [&] { return kHeld == 2 ? job.end_tile : end; });
      }
    });
  }
  pass_absent(to, job, tile);
}

}  // namespace tilewright::cuda::dsv4
