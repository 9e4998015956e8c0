// A warp finds the parts that its block computes, from the lengths in memory.
#pragma once

#include "cuda/attention/decode/config.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/peek.cuh"
#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {
namespace decode {

// The call's shape. Whether it is batch-invariant is known at compile time.
template <bool kIsInvariant>
__device__ inline DecodeShape shape_of(const Launch& launch) {
  DecodeShape shape = launch.shape;
  shape.is_invariant = kIsInvariant;
  return shape;
}

// Walks over the sequences, 32 at a time: each lane has one. In a rehearsal it reads no lengths,
// and takes each sequence to have one key.
template <typename Config>
class Walk {
 public:
  static constexpr bool kIsInvariant = Config::kIsInvariant;
  static constexpr int kMostKnown = Config::kMostKnown;

  // It keeps the lengths of up to kMostKnown sequences. Those of more it reads whenever it comes
  // by.
  __device__ Walk(const Params& p, const Launch& launch, KnownLengths<kMostKnown>& known,
                  bool is_rehearsal)
      : p_(p),
        launch_(launch),
        known_(known),
        is_rehearsal_(is_rehearsal),
        shares_(0, 0, 0, launch.workers) {}

  // Whether it keeps all sequences' lengths.
  __device__ bool knows_all() const { return kMostKnown > 0 && p_.batch <= kMostKnown; }

  // Reads the lengths that it keeps again, which a launch ahead may still write. Returns whether
  // all are as before. All lanes call it.
  __device__ bool refresh() {
    bool is_same = refresh(p_.rows.cache_seqlens, known_.cached, p_.batch);
    is_same &= refresh(p_.packed_q.cu_seqlens, known_.q_starts, p_.batch + 1);
    is_same &= refresh(p_.rows.leftpad, known_.leftpad, p_.batch);
    __syncwarp();  // a lane also reads where the next one's sequence starts
    return __all_sync(kAll, is_same);
  }

  // Counts all sequences' units, and begins with the first sequence.
  __device__ void start() {
    unit_splits_ = 1;
    int units = 0;
    int bundles = 0;
    int items = 0;
    int most_units = 0;
#pragma unroll 1
    for (first_ = 0; first_ < p_.batch; first_ += 32) {
      look_up();
      units += work_.units * work_.items;
      bundles += ceil_div(work_.units, kBundle) * work_.items;
      items += work_.items;
      most_units = max(most_units, work_.units);
    }
    units = __reduce_add_sync(kAll, units);
    items = __reduce_add_sync(kAll, items);
    most_units = __reduce_max_sync(kAll, most_units);
    Workers workers = launch_.workers;
    if constexpr (kIsInvariant) {
      bundles = __reduce_add_sync(kAll, bundles);
      unit_splits_ = splits_of_unit(units, bundles, workers);
      workers.cluster_log2 = 0;  // a unit is one worker's
      work_ = in_units_of(work_, unit_splits_);
      most_units = ceil_div(most_units, unit_splits_);
      units = unit_splits_ == 1 ? units : unit_splits_ == kBundle ? bundles : items;
    }
    shares_ = UnitShares(units, items, most_units, workers);
    first_ = p_.batch > 32 ? -32 : 0;  // with more, nothing is looked up yet
    upto_ = p_.batch > 32 ? 0 : sum_up(work_.units * work_.items);
  }

  __device__ const UnitShares& shares() const { return shares_; }
  __device__ int unit_splits() const { return unit_splits_; }

  // Calls write() on the lane whose sequence has unit `unit`, which is at or after that of the call
  // before. All lanes call it. No lane has the unit, or several have it, if lengths were read too
  // early, and are so far out of range that their sums are.
  template <typename Write>
  __device__ void at(int unit, const Write& write) {
    while (unit >= __shfl_sync(kAll, upto_, 31) && first_ + 32 < p_.batch) {
      const int before = __shfl_sync(kAll, upto_, 31);
      first_ += 32;
      look_up();
      upto_ = before + sum_up(work_.units * work_.items);
    }
    const int before = upto_ - work_.units * work_.items;
    if (unit >= before && unit < upto_) {
      write(first_ + lane(), lengths_, work_, unit - before);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // The same of one array, if there is one. A lane reads every 32nd of it. All lanes call it.
  __device__ __forceinline__ static bool refresh(const int* array, int* known, int count) {
    // As many as there are registers for.
    constexpr int kAtOnce = !Config::C.swaps ? 1 : Config::kRows < 32 ? 4 : 2;
    bool is_same = true;
    if (array != nullptr) {
#pragma unroll 1
      for (int base = 0; base < count; base += 32 * kAtOnce) {
        const int first = base + lane();
        int now[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          now[i] = peek(array + min(first + 32 * i, count - 1));
        }
        __syncwarp();  // else the compiler has each load wait for the one before
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + 32 * i < count) {
            is_same &= known[first + 32 * i] == now[i];
            known[first + 32 * i] = now[i];
          }
        }
      }
    }
    return is_same;
  }

  // The lengths of this lane's sequence, of the 32 from first_ on.
  __device__ SequenceLengths lengths() const {
    const int sequence = first_ + lane();
    if (is_rehearsal_) {
      return {.q_start = 0, .q_len = 1, .kv_len = 1, .leftpad = 0};
    }
    if (!knows_all()) {
      return lengths_of(p_, sequence);
    }
    const bool is_packed = p_.packed_q.cu_seqlens != nullptr;
    return lengths_of(p_, {.q_start = is_packed ? known_.q_starts[sequence] : 0,
                           .q_end = is_packed ? known_.q_starts[sequence + 1] : p_.q_len,
                           .cached = known_.cached[sequence],
                           .leftpad = p_.rows.leftpad != nullptr ? known_.leftpad[sequence] : 0});
  }

  // Looks up what this lane's sequence has, of the 32 from first_ on.
  __device__ void look_up() {
    work_ = {};
    if (first_ + lane() < p_.batch) {
      lengths_ = lengths();
      if (lengths_.q_len > 0 && lengths_.q_len <= launch_.shape.most_tokens) {
        work_ = work_of(shape_of<kIsInvariant>(launch_), lengths_);
        if constexpr (kIsInvariant) {
          work_ = in_units_of(work_, unit_splits_);
        }
      }
    }
  }

  // The sum of the values of the lanes up to this one.
  __device__ static int sum_up(int value) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, value, step);
      value += lane() >= step ? other : 0;
    }
    return value;
  }

  const Params& p_;
  const Launch& launch_;
  KnownLengths<kMostKnown>& known_;
  const bool is_rehearsal_;
  int unit_splits_ = 1;        // of a batch-invariant item
  int first_ = 0;              // sequence of lane 0
  SequenceLengths lengths_{};  // of this lane's sequence
  SequenceWork work_{};
  int upto_ = 0;  // units up to the end of this lane's sequence
  UnitShares shares_;
};

// Narrows a bundle's key tiles to split `split` or, in a cluster, to the block's own one. Returns
// how many splits come one after the other.
__device__ inline int narrow_to_split(TileRange& tiles, int split_tiles, int split,
                                      const Launch& launch) {
  const bool is_cluster = launch.workers.cluster_log2 > 0;
  const int splits = is_cluster ? 1 : max(ceil_div(tiles.end - tiles.first, split_tiles), 1);
  const int first = tiles.first + (is_cluster ? rank_in(launch) : split) * split_tiles;
  tiles = {.first = min(first, tiles.end), .end = min(first + split_tiles, tiles.end)};
  return splits;
}

// Writes the part that begins with unit `at` of the sequence's units, `unit` of all, and ends with
// share `share` at the latest; of a bundle, its split `split`. Returns how many units it has, or 0
// if more splits follow.
template <typename Config>
__device__ inline int write_part(Part& part, const Params& p, const Launch& launch,
                                 const Walk<Config>& walk, int sequence,
                                 const SequenceLengths& lengths, const SequenceWork& work, int at,
                                 int unit, int share, int split) {
  constexpr bool kIsInvariant = Config::kIsInvariant;
  const DecodeShape shape = shape_of<kIsInvariant>(launch);
  const UnitShares& shares = walk.shares();
  const int item = quotient(at, work.units);
  const int first = at - item * work.units;  // unit of the item
  const int units = kIsInvariant ? 1 : min(work.units - first, shares.begin(share + 1) - unit);
  const int head_block = work.row_tiles == 1 ? item : item / work.row_tiles;
  const int kv_head = shape.head_blocks == 1 ? head_block : head_block / shape.head_blocks;
  const int head_in_group = (head_block - kv_head * shape.head_blocks) * shape.tile_heads;
  part.lengths = lengths;
  part.sequence = sequence;
  part.kv_head = kv_head;
  part.first_head = kv_head * shape.group + head_in_group;
  part.heads = min(shape.group - head_in_group, static_cast<int>(shape.tile_heads));
  part.token0 = (item - head_block * work.row_tiles) * shape.tile_tokens;
  part.tokens = min(lengths.q_len - part.token0, shape.tile_tokens);

  const CacheKeys keys = shape.keys_of(lengths);
  const int last = part.token0 + part.tokens - 1;
  part.first = keys.first(part.token0);
  part.end = keys.end(last);
  part.whole_first = keys.first(last);
  part.whole_end = min(keys.end(part.token0), p.tree.bits != nullptr ? keys.diagonal : keys.kv_len);
  TileRange tiles = tiles_of_units(shape, work, first, first + units);
  if constexpr (kIsInvariant) {
    part.split = split;
    part.splits =
        walk.unit_splits() > 1 ? narrow_to_split(tiles, work.split_tiles, split, launch) : 1;
  }
  tiles.first = max(tiles.first, part.first / kDecodeTileKeys);
  tiles.end = max(min(tiles.end, ceil_div(part.end, kDecodeTileKeys)), tiles.first);
  part.tiles = kIsInvariant || launch.workers.cluster_log2 == 0
                   ? tiles
                   : tiles_of_block(tiles, rank_in(launch), launch.workers.cluster_log2);
  part.seen_first = keys.first(0);
  part.seen_end = keys.end(lengths.q_len - 1);
  if constexpr (kIsInvariant) {
    part.place =
        place_of_unit(shares, share, unit - first, work.units, first, walk.unit_splits() == 1);
  } else if (units == work.units) {
    part.place = {.parts = 1, .merges = true};
  } else {
    part.place = place_of_share(shares, share, unit - first, work.units);
  }
  part.is_end = false;
  part.is_guess = false;
  return kIsInvariant && split + 1 < part.splits ? 0 : units;
}

// Puts a part without keys and without rows into the ring, ahead of all others. It has no results.
// The consumer executes the code of a part's end for it, which is then in the SM's instruction
// caches before the first key has come. That leaves out a merge of parts: with its code, there
// would be more than the caches keep until the end. One thread calls it.
__device__ inline void put_empty_part(PartRing& ring) {
  Part part{};
  part.tokens = 1;
  part.splits = 1;
  part.lengths.q_len = 1;
  part.place = {.parts = 1, .merges = true};
  ring.tiles[0] = part;
  ring.put({});
}

// Takes the next of the further shares: 0, 1, 2 ... Once there are none left, each worker gets one
// more number; the last of these clears the tickets for the next replay. A warp calls it.
__device__ inline int take_share(const UnitShares& shares, const Launch& launch) {
  const TicketCounter tickets{.word = launch.tickets, .epoch = launch.epoch};
  int ticket = 0;
  if (threadIdx.x % 32 == 0) {
    ticket = tickets.take();
    if (ticket == shares.further() + shares.workers() - 1) {
      tickets.clear();
    }
  }
  return __shfl_sync(0xffffffffu, ticket, 0);
}

// The row of caches without pages that is the sequence's, as of now.
__device__ inline int peek_cache_row(const Params& p, int sequence) {
  return p.rows.cache_batch_idx != nullptr ? peek(p.rows.cache_batch_idx + sequence) : sequence;
}

// Whether the part may be a guess. Lengths that are read too early may be anything: its rows of q
// may not exist, and a long part would be computed for nothing where it gains little.
__device__ inline bool may_be_guess(const Params& p, const Part& part) {
  constexpr int kMostTiles = 128;
  const int q_start = part.lengths.q_start;
  const bool has_queries =
      p.packed_q.cu_seqlens == nullptr || (q_start >= 0 && q_start <= p.q_len - part.lengths.q_len);
  return has_queries && part.tiles.end - part.tiles.first <= kMostTiles;
}

// Puts all parts of the block into the ring, behind the empty one. A warp calls it. The first part
// is written before wait_for_ring(), which waits until the ring is set up; and, unless sequences
// are many, before the launch ahead has ended. It is put into the ring at once, as a guess: nobody
// reads what it needs, or stores its results, before that launch has ended. If lengths, or the
// sequence's row of the caches, are others then, it is void, and a first part is written again. An
// end, or a part whose rows of q do not exist, is no guess, and put only then. With `rehearsed`,
// another warp executes the same code ahead, only to bring it to the SM's instruction caches: it
// writes a first part there, and does nothing else.
template <typename Config, typename WaitForRing>
__device__ __forceinline__ void find_parts(SharedStorage<Config>& shared, const Params& p,
                                           const Launch& launch, Part* rehearsed,
                                           const WaitForRing& wait_for_ring) {
  constexpr unsigned kAll = 0xffffffffu;
  PartRing& ring = shared.parts;
  const bool is_rehearsal = rehearsed != nullptr;
  const auto wait_for_launch = [&] {
    wait_for_launch_before();
    if (launch.next_may_join) {
      let_next_launch_start();  // only now, so that it need not wait for what this launch waits for
    }
  };
  Walk<Config> walk(p, launch, shared.known, is_rehearsal);
  const bool is_early = walk.knows_all() && !is_rehearsal;
  if (!is_early && !is_rehearsal) {
    wait_for_launch();
  }
  const UnitShares& shares = walk.shares();
  bool may_take = false;
  int share = 0;
  int unit = 0;
  int end = 0;
  int split = 0;  // of a bundle
  PartRing::Position at;
  at.advance();
  std::uint32_t asked = 0;
  bool is_end = false;
  bool has_written = false;  // this lane, of a part
  bool has_guessed = false;  // the first part
  enum { kFirst, kFirstAgain, kNext } step = kFirst;
  while (true) {
    bool writes = true;
    if (step != kNext) {
      bool is_same = is_early && walk.refresh();
      if (has_guessed) {
        Part& guess = ring.tiles[at.stage];
        is_same &=
            __all_sync(kAll, !has_written || guess.cache_row == peek_cache_row(p, guess.sequence));
        if (has_written) {
          guess.is_void = !is_same;
          shared.judged.arrive();
        }
        at.advance();
        if (is_same) {
          step = kNext;
        } else if (guess.asks) {
          shared.asked.wait(asked++ & 1);
        }
        has_guessed = false;
      }
      writes = step == kFirst || !is_same;
    }
    if (step == kNext) {
      if (may_take && unit >= end) {
        shared.asked.wait(asked++ & 1);
        share = shares.workers() + take_share(shares, launch);
        if (share < shares.workers() + shares.further()) {
          unit = shares.begin(share);
          end = shares.begin(share + 1);
        }
      }
      ring.acquire(at);
      writes = true;
    }
    if (step != kNext && writes) {
      walk.start();
      share = shares.share_of(static_cast<int>(blockIdx.x) >> launch.workers.cluster_log2);
      const bool has_work = share >= 0;
      end = has_work ? shares.begin(share + 1) : 0;
      unit = has_work ? shares.begin(share) : 0;
      may_take = Config::kMayTake && has_work && shares.further() > 0;
      split = 0;
    }
    Part& part = is_rehearsal ? *rehearsed : ring.tiles[at.stage];
    if (writes) {
      has_written = false;
      is_end = unit >= end;
      if (is_end) {
        has_written = threadIdx.x % 32 == 0;
        if (has_written) {
          part.is_end = true;
        }
      } else {
        int units = 0;
        walk.at(unit, [&](int sequence, const SequenceLengths& lengths, const SequenceWork& of,
                          int unit_of_sequence) {
          units = write_part(part, p, launch, walk, sequence, lengths, of, unit_of_sequence, unit,
                             share, split);
          part.asks = may_take && unit + units >= end;
          part.is_last = !may_take && unit + units >= end;
          has_written = true;
        });
        units = __reduce_max_sync(kAll, units);
        unit += units;
        if constexpr (Config::kIsInvariant) {
          split = units == 0 ? split + 1 : 0;
        }
      }
    }
    if (is_rehearsal) {
      return;
    }
    const bool is_first = step == kFirst && is_early;
    has_guessed = is_first && __popc(__ballot_sync(kAll, has_written)) == 1 &&
                  __any_sync(kAll, has_written && !is_end && may_be_guess(p, part));
    if (step == kFirst) {
      wait_for_ring();
    }
    if (has_written && (has_guessed || !is_first)) {
      part.is_guess = has_guessed;
      part.cache_row = is_end ? 0 : peek_cache_row(p, part.sequence);
      ring.put(at);
    }
    if (is_first) {
      wait_for_launch();
      step = kFirstAgain;
      continue;
    }
    step = kNext;
    if (is_end) {
      return;
    }
    at.advance();
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
