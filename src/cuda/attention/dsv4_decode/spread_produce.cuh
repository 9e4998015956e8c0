// The producers of dsv4_spread (spread.cuh): two warpgroups, of which each copies one tile of the
// own pair and widens half of its rows. Both bring the block's columns of V, and two warps compute
// the factors of rows.
#pragma once

#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/attention/dsv4_decode/spread_rows.cuh"

namespace tilewright::cuda::dsv4 {

template <int kFormats>
class SpreadProducer {
 public:
  __device__ SpreadProducer(SpreadStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run() {
    bool are_copied = copy_by_guess();
    for (int round = 0;; ++round) {
      if (!are_copied) {
        copy_keys(round);
      }
      are_copied = false;
      if (uniform(shared_.unit.index) >= launch_.units) {
        return;
      }
      const Round its(shared_);
      if constexpr (kDsv4Formats[kFormats].has_one()) {
        bring_tiles<kDsv4Formats[kFormats].first()>(its, round);
      } else {
        bring_tiles(its, round);
      }
      arrive(shared_.values_full);
      const bool is_last = its.first_tile + its.tiles == uniform(shared_.unit.end_tile);
      if (this_thread() < kRows) {
        append_row(its, round, is_last);
      }
      if (is_last) {
        return;
      }
      arrive(shared_.round_done);
    }
  }

 private:
  // What is known of key lane % 16 of the warp's in the own tile before the launch ahead has ended.
  struct KeyGuess {
    TileAt at;
    LookUp slot;  // if it is one of a list
  };

  __device__ static int number_of_tile() { return Round::number(KeyTile::number()); }
  __device__ static int own_key() { return first_key(this_thread()) + this_thread() % kWarpKeys; }

  __device__ __forceinline__ KeyGuess guess_key() const {
    const Unit& unit = shared_.guessed;
    KeyGuess guess{.at = tile_at(unit, unit.first_tile + number_of_tile())};
    if (is_list(p_, guess.at.source)) {
      guess.slot = look_up(p_, launch_, unit, guess.at.source, guess.at.key0 + own_key(), 0);
    }
    return guess;
  }

  // The row of that key, if the guess is right. It is left where V's rows are found, too.
  __device__ __forceinline__ RowAt guessed_row(const KeyGuess& guess) const {
    const auto [source, key0] = guess.at;
    const Unit& unit = shared_.guessed;
    const int key = key0 + own_key();
    LookUp its = guess.slot;
    SeenKeys seen(0, INT_MAX);
    if (!is_list(p_, source)) {
      if (source != kFresh) {
        seen = seen_keys(p_, unit, source);
      }
      its = look_up(p_, launch_, unit, source, key, seen.begin);
    }
    const int found = its.at != nullptr ? __ldcg(its.at) : its.known;
    const int place = key < seen.end - seen.begin ? checked(p_, launch_, source, found) : kNoRow;
    const std::uint32_t exist = __ballot_sync(0xffffffffu, place != kNoRow);
    const RowAt row = row_at(p_, launch_, unit, source, key, place,
                             parts_of(format_of<kFormats>(p_, source)), seen.begin);
    if (this_thread() % 32 < kWarpKeys) {
      shared_.rows()[number_of_tile()][own_key()] = row;
    }
    if (this_thread() % 32 == 0) {
      reinterpret_cast<std::uint16_t*>(shared_.exist[number_of_tile()])[own_key() / kWarpKeys] =
          static_cast<std::uint16_t>(exist);
    }
    return row;
  }

  // Copies this producer's tile of the own pair by the guess: its rows are on their way while the
  // unit is found. Returns whether the guess was right.
  __device__ __forceinline__ bool copy_by_guess() const {
    const KeyGuess guess = guess_key();
    TmaBarrier& full = shared_.guess_copied[KeyTile::number()];
    const bool exists = shared_.guesses_tile(number_of_tile());
    wait_for_launch_before();
    if (exists) {
      copy_rows(guessed_row(guess), format_of<kFormats>(p_, guess.at.source), full);
    }
    arrive(shared_.own_found);
    shared_.unit_found.wait(0);
    shared_.wait_for_wrong_copies();
    return shared_.is_guess_right;
  }

  // Copies it when the round's rows have been found.
  __device__ __forceinline__ void copy_keys(int round) const {
    if (uniform(shared_.unit.index) >= launch_.units) {
      return;
    }
    shared_.rows_full.wait(round & 1);
    const int number = number_of_tile();
    const int tile = uniform(shared_.first_tile) + number;
    if (tile < uniform(shared_.end_tile)) {
      cutlass::arch::fence_view_async_shared();  // what lies there has been read
      copy_rows(shared_.rows()[number][own_key()],
                format_of<kFormats>(p_, tile_at(shared_.unit, tile).source),
                shared_.copied[KeyTile::number()]);
    }
  }

  // Coded rows to the own tile's place. Lane i of the warp has row i % 16. BF16 rows are not
  // copied, but have their phase of the barrier.
  __device__ __forceinline__ void copy_rows(const RowAt& row, KvRowFormat format,
                                            TmaBarrier& full) const {
    const int lane = this_thread() % 32;
    const bool is_coded = format != KvRowFormat::bf16;
    const KvRowParts parts = parts_of(format);
    const int bytes = is_coded ? copied_bytes(parts) : 0;
    auto* const place = reinterpret_cast<std::uint8_t*>(shared_.keys[KeyTile::number()][0]);
    if (lane == 0) {
      full.arrive_and_expect_tx(kWarpKeys * bytes);
    }
    __syncwarp();
    if (lane < kWarpKeys) {
      copy_scales(row, parts.has_planes, full);
      if (is_coded) {
        cute::SM90_BULK_COPY_G2S::copy(row.data, reinterpret_cast<std::uint64_t*>(&full),
                                       place + own_key() * copied_stride(parts), bytes);
      }
    }
  }

  // A row's scales, if they lie apart. The barrier counts their arrival.
  __device__ void copy_scales(const RowAt& row, bool lie_apart, TmaBarrier& full) const {
    if (!lie_apart) {
      full.arrive();
      return;
    }
    auto* const to = reinterpret_cast<std::uint64_t*>(shared_.scales[KeyTile::number()][own_key()]);
    cute::SM80_CP_ASYNC_CACHEALWAYS<std::uint64_t>::copy(
        *reinterpret_cast<const std::uint64_t*>(row.scales), *to);
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&full))
        : "memory");
  }

  // K and V. Of V all is on its way before the consumers have read K.
  template <KvRowFormat kFormat>
  __device__ __forceinline__ void bring_tiles(const Round& its, int round) const {
    if (number_of_tile() < its.tiles) {
      widen_keys<kFormat>(round);
    }
    shared_.rows_full.wait(round & 1);
    ValueRows<kFormat, kRoundTiles> values(shared_, 0);
    values.load(its.tiles);
    const bool has_read = !values.reads_rows_again();
    shared_.keys_read.wait(round & 1);
    if (has_read) {
      say_place_is_free(its);
    }
    values.store(its.tiles);
    if (!has_read) {
      say_place_is_free(its);
    }
  }

  // Says to the blocks that have pairs that Q has been read, and this warp's places of rows. They
  // all wait for that, so that none has ended when it comes.
  __device__ __forceinline__ void say_place_is_free(const Round& its) const {
    cutlass::arch::fence_view_async_shared();  // before TMA writes there
    __syncwarp();
    if (this_thread() % 32 < its.pairs) {
      shared_.p_free.arrive(this_thread() % 32);
    }
  }

  // K: eight rows, and the last quarter of the eight behind, a consumer's.
  template <KvRowFormat kFormat>
  __device__ __forceinline__ void widen_keys(int round) const {
    const int own = KeyTile::number();
    const int first = first_key(this_thread());
    KeyRows<kFormat> rows(shared_, own, first);
    KeyRows<kFormat, kRestOfBlocks> behind(shared_, own, first + kPassKeys);
    rows.ask(round);
    rows.read(round);
    behind.read(round);
    if constexpr (kFormat != KvRowFormat::bf16) {
      sync_tile(own);
    }
    rows.store_exceeding(round);
    cute::for_each(cute::make_int_sequence<kQuarters>{}, [&](auto quarter) {
      rows.template store<quarter>();
      if constexpr (kFormat != KvRowFormat::bf16) {
        behind.template store<quarter>();
      }
      arrive(shared_.keys_full[own][quarter]);
    });
  }

  // The same of tiles of any formats, V tile by tile.
  __device__ __forceinline__ void bring_tiles(const Round& its, int round) const {
    const auto format_at = [&](int number) {
      const TileAt at = tile_at(shared_.unit, its.first_tile + min(number, its.tiles - 1));
      return format_of<kFormats>(p_, at.source);
    };
    if (number_of_tile() < its.tiles) {
      with_format<kFormats>(format_at(number_of_tile()),
                            [&](auto format) { widen_keys<format.value>(round); });
    }
    shared_.keys_read.wait(round & 1);
    shared_.rows_full.wait(round & 1);
#pragma unroll 1
    for (int i = 0; i < its.pairs * kPairTiles; ++i) {
      with_format<kFormats>(format_at(i), [&](auto format) {
        ValueRows<format.value, 1> values(shared_, i);
        values.load(its.tiles);
        values.store(its.tiles);
      });
    }
    say_place_is_free(its);
  }

  // Appends the statistics of the pairs to those of this thread's row, and finds out what becomes
  // of it. The consumers have the row's columns of O.
  __device__ __forceinline__ void append_row(const Round& its, int round, bool is_last) {
    const int row = this_thread();
    const Unit& unit = shared_.unit;
    float sink = 0.0f;
    if (p_.sinks.logits != nullptr) {
      const Row of_unit = row_of(unit, launch_.shape, row);
      if (of_unit.exists) {
        sink = __ldg(&p_.sinks.logits[of_unit.head * p_.sinks.stride]);
      }
    }
#pragma unroll 1
    for (int pair = 0; pair < its.pairs; ++pair) {
      shared_.p_full[pair].wait(round & 1);
      const float4 first = shared_.statistics[pair][0][row];
      const float4 second = shared_.statistics[pair][1][row];
      const Appended appended(so_far_, {.reference = first.x,
                                        .max = first.y,
                                        .sum = first.z + second.z,
                                        .rounded_sum = first.w + second.w});
      shared_.factors[pair][row] = {appended.before, appended.behind};
      so_far_ = appended.row;
    }
    arrive(shared_.factors_full);
    if (!is_last) {
      return;
    }
    shared_.sinks[row] = sink;
    if (unit.parts > 1) {
      if (block_rank() == 0) {
        __stcg(&launch_.statistics[std::int64_t{unit.index} * kRows + row],
               float4{so_far_.reference, so_far_.max, so_far_.sum, so_far_.rounded_sum});
      }
    } else {
      const RowEnd end(p_, launch_, unit, shared_.sinks, so_far_, row);
      shared_.end_factors[row] = end.factor;
      if (block_rank() == 0 && end.row.exists) {
        store_statistics(p_, unit, end);
      }
    }
    arrive(shared_.ends_full);
  }

  SpreadStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  RowSoFar so_far_;  // of this thread's row
};

}  // namespace tilewright::cuda::dsv4
