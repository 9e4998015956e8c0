// Who computes what of a product whose output is cut into tiles and whose K into chunks.
//
// Workers (blocks, or clusters of them) first share the shared tiles: their chunks, one tile after
// the other, are dealt out, so that a worker's range may begin and end inside a tile (stream-K),
// and that all are done at about the same time. The other tiles, where some are shared a multiple
// of the workers' number, are then computed whole.
//
// Of a tile cut into parts the worker with the last chunks is the owner: it adds the others' sums
// to its own. Each works its range off backwards, so that its own part for another owner comes
// first, and an owner waits for workers of lower number only. Where workers wait their numbers are
// tickets: those of lower number have started, and none of them waits for this one.
#pragma once

#include "common/divisor.hpp"

namespace tilewright::cuda {

// Chunks [begin, end) of a tile's.
struct TilePart {
  int tile;
  int begin;
  int end;
};

class GemmSchedule {
 public:
  static constexpr int kMaxWorkers = 144;  // SMs of a Hopper GPU, at most
  static constexpr int kLeastPart = 2;     // chunks to hand over; fewer are not worth it
  static constexpr int kLeastLag = 2;

  int tiles;
  int shared_tiles;  // the first ones; their chunks are at least as many as the workers
  Divisor chunks;    // of a tile
  int workers;

  // Sums on their way to another worker take as long as `lag` chunks. That is reckoned with where
  // it does not cut tiles into more parts than kLeastLag would, which is reckoned with at least.
  constexpr GemmSchedule(int all_tiles, int first_tiles, int tile_chunks, int all_workers, int lag)
      : tiles(all_tiles), shared_tiles(first_tiles), chunks(tile_chunks), workers(all_workers) {
    if (shared_tiles == 0) {
      return;  // nobody has a range
    }
    const int least_parts = deal_out(kLeastLag);
    if (lag > kLeastLag && deal_out(lag) > least_parts) {
      deal_out(kLeastLag);
    }
  }

  // The first chunk, counted through the shared tiles, of a worker's range.
  TILEWRIGHT_HOST_DEVICE constexpr int range_begin(int worker) const { return begin_[worker]; }

 private:
  // In as short a time as can be. Returns the number of parts.
  constexpr int deal_out(int lag) {
    int most = (shared_tiles * chunks + workers - 1) / workers;
    while (!deal_out(most, lag)) {
      ++most;
    }
    int parts = 0;
    for (int worker = 0; worker < workers; ++worker) {
      const int begin = begin_[worker];
      const int end = begin_[worker + 1];
      parts += begin < end ? (end - 1) / chunks - begin / chunks + 1 : 0;
    }
    return parts;
  }

  // At most so many chunks for each worker, and of those for another owner, which it computes
  // first, only what it can hand over in time. Returns whether that is all of them.
  constexpr bool deal_out(int most, int lag) {
    const int all = shared_tiles * chunks;
    const int in_time = most > lag ? most - lag : 0;
    int at = 0;
    for (int worker = 0; worker < workers; ++worker) {
      if (at + (workers - worker) * most < all) {
        return false;
      }
      begin_[worker] = at;
      const int end = at + most < all ? at + most : all;
      const int tile_begin = end / chunks * chunks;
      const int wanted = end - (at > tile_begin ? at : tile_begin);
      const int handed_over = wanted < in_time ? wanted : in_time;
      at = end - wanted + (handed_over < kLeastPart ? 0 : handed_over);
    }
    begin_[workers] = at;
    return at == all;
  }

  int begin_[kMaxWorkers + 1] = {};
};

// How tiles are numbered: those of one product after those of the one before; in a product, groups
// of row tiles (of the weight); in a group, token tile by token tile.
struct TileOrder {
  int row_tiles;
  int token_tiles;
  Divisor group;          // row tiles of a group
  int tokens;             // of a token tile
  Divisor last_group;     // row tiles of the last group
  Divisor group_tiles;    // all tiles of a group
  Divisor product_tiles;  // all tiles of a product

  constexpr TileOrder(int all_row_tiles, int all_token_tiles, int rows_of_group, int tile_tokens)
      : row_tiles(all_row_tiles),
        token_tiles(all_token_tiles),
        group(rows_of_group),
        tokens(tile_tokens),
        last_group((all_row_tiles - 1) % rows_of_group + 1),
        group_tiles(rows_of_group * all_token_tiles),
        product_tiles(all_row_tiles * all_token_tiles) {}

  struct Position {
    int row_tile;
    int token_tile;
    int batch;
  };

  TILEWRIGHT_HOST_DEVICE constexpr Position at(int tile) const {
    const int batch = tile / product_tiles;
    tile -= batch * product_tiles;
    const int first = tile / group_tiles * group;
    tile -= first * token_tiles;
    const Divisor& height = row_tiles - first < group ? last_group : group;
    const int token_tile = tile / height;
    return {
        .row_tile = first + tile - token_tile * height, .token_tile = token_tile, .batch = batch};
  }
};

// One worker's parts, in its order.
class PartWalk {
 public:
  TILEWRIGHT_HOST_DEVICE constexpr PartWalk(const GemmSchedule& schedule, int worker)
      : worker_(worker), end_(schedule.range_begin(worker + 1)) {}

  // False when nothing is left.
  TILEWRIGHT_HOST_DEVICE constexpr bool next(const GemmSchedule& schedule, TilePart& part) {
    const int begin = end_ > 0 ? schedule.range_begin(worker_) : 0;
    if (begin < end_) {
      const int tile = (end_ - 1) / schedule.chunks;
      const int tile_begin = tile * schedule.chunks;
      const int part_begin = begin > tile_begin ? begin : tile_begin;
      part = {tile, part_begin - tile_begin, end_ - tile_begin};
      end_ = part_begin;
      return true;
    }
    end_ = 0;
    part = {schedule.shared_tiles + worker_, 0, schedule.chunks};
    worker_ += schedule.workers;
    return part.tile < schedule.tiles;
  }

 private:
  int worker_;  // and then, whole tile by whole tile, as much further on as there are workers
  int end_;     // of what is left of the range; 0: nothing
};

// The workers that compute the beginning of a tile whose last part begins inside it and is the
// given worker's: from `first` up to that one.
TILEWRIGHT_HOST_DEVICE constexpr int first_worker(const GemmSchedule& schedule, int tile,
                                                  int owner) {
  int first = owner - 1;
  while (schedule.range_begin(first) > tile * schedule.chunks) {
    --first;
  }
  return first;
}

}  // namespace tilewright::cuda
