// Who computes what of a GEMM whose output is cut into tiles and whose K into chunks.
//
// Workers (blocks, or clusters of blocks) first compute the stream-K tiles, `stream_k_tiles`. The
// chunks of these, one tile after the other, are dealt out evenly, so that all workers are done at
// about the same time; a worker's range may begin and end inside a tile. Then they compute the
// other tiles whole. Where there are stream-K tiles, the number of the others is a multiple of the
// number of workers.
//
// If a tile is cut into parts, the worker with its last chunks is the reducer: it adds the sums of
// the other parts, which workers of lower numbers compute, to its own. A worker computes the last
// tile of its range first, so that the part that another worker reduces is handed over early.
// Under stream-K a worker's number is a ticket. So the workers that a reducer waits for have
// already started, and no two workers wait for each other.
#pragma once

#include "common/divisor.hpp"

namespace tilewright::cuda {

// Chunks [begin, end) of tile `tile`.
struct TilePart {
  int tile;
  int begin;
  int end;
};

class GemmSchedule {
 public:
  static constexpr int kMaxWorkers = 144;  // SMs of a Hopper GPU, at most
  static constexpr int kLeastPart = 2;     // in chunks; smaller parts are not worth handing over
  static constexpr int kLeastLag = 2;

  int tiles;
  int stream_k_tiles;  // the first of all tiles. They have at least a chunk a worker
  Divisor chunks;      // of a tile
  int workers;

  // Sums reach another worker after the time of `lag` chunks. The ranges allow for that, unless it
  // would cut tiles into more parts than kLeastLag does; then they allow for kLeastLag alone.
  constexpr GemmSchedule(int all_tiles, int first_tiles, int tile_chunks, int all_workers, int lag)
      : tiles(all_tiles), stream_k_tiles(first_tiles), chunks(tile_chunks), workers(all_workers) {
    if (stream_k_tiles == 0) {
      return;  // no worker has a range
    }
    int most = (stream_k_tiles * chunks + workers - 1) / workers;
    const int least_parts = deal_out_from(most, kLeastLag);
    const GemmSchedule least = *this;
    if (lag > kLeastLag && deal_out_from(most, lag) > least_parts) {
      *this = least;
    }
  }

  // The first chunk of a worker's range, counted over all stream-K tiles.
  TILEWRIGHT_HOST_DEVICE constexpr int range_begin(int worker) const { return begin_[worker]; }

 private:
  // Deals the chunks out for the shortest time, and raises `most` to that. Returns the number of
  // parts.
  constexpr int deal_out_from(int& most, int lag) {
    // Fewer cannot do: at most as many workers reach the end of a tile as there are tiles, and each
    // of the others leaves `lag` chunks. A whole tile for each of these workers always does.
    const int others = workers > stream_k_tiles ? workers - stream_k_tiles : 0;
    const int least = (stream_k_tiles * chunks + others * lag + workers - 1) / workers;
    const int start = least < chunks ? least : int{chunks};
    most = most > start ? most : start;
    int parts = deal_out(most, lag);
    while (parts == 0) {
      parts = deal_out(++most, lag);
    }
    return parts;
  }

  // Gives each worker at most `most` chunks and, of those for another reducer, which it computes
  // first, only as many as it can hand over in time. Returns the number of parts, or 0 if that is
  // not all of them.
  constexpr int deal_out(int most, int lag) {
    const int all = stream_k_tiles * chunks;
    const int in_time = most > lag ? most - lag : 0;
    int parts = stream_k_tiles;  // and one more for each range that begins inside a tile
    int at = 0;
    int tile_begin = 0;  // of the tile in which a range ends
    for (int worker = 0; worker < workers; ++worker) {
      if (at + (workers - worker) * most < all) {
        return 0;
      }
      begin_[worker] = at;
      const int end = at + most < all ? at + most : all;
      while (tile_begin + chunks <= end) {
        tile_begin += chunks;
      }
      const int first = at > tile_begin ? at : tile_begin;  // of those for another reducer
      const int handed_over = end - first < in_time ? end - first : in_time;
      const int next = first + (handed_over < kLeastPart ? 0 : handed_over);
      parts += next > at && next > tile_begin ? 1 : 0;
      at = next;
    }
    begin_[workers] = at;
    return at == all ? parts : 0;
  }

  int begin_[kMaxWorkers + 1] = {};
};

// How tiles are numbered: GEMM after GEMM of the batch; in a GEMM, group after group of row tiles
// (of the weight); in a group, all row tiles of one token tile after the other.
struct TileOrder {
  int row_tiles;
  int token_tiles;
  Divisor group;        // row tiles of a group
  int tokens;           // of a token tile
  Divisor last_group;   // row tiles of the last group
  Divisor group_tiles;  // all tiles of a group
  Divisor gemm_tiles;   // all tiles of a GEMM

  constexpr TileOrder(int all_row_tiles, int all_token_tiles, int rows_of_group, int tile_tokens)
      : row_tiles(all_row_tiles),
        token_tiles(all_token_tiles),
        group(rows_of_group),
        tokens(tile_tokens),
        last_group((all_row_tiles - 1) % rows_of_group + 1),
        group_tiles(rows_of_group * all_token_tiles),
        gemm_tiles(all_row_tiles * all_token_tiles) {}

  struct Position {
    int row_tile;
    int token_tile;
    int batch;
  };

  TILEWRIGHT_HOST_DEVICE constexpr Position at(int tile) const {
    const int batch = tile / gemm_tiles;
    tile -= batch * gemm_tiles;
    const int first = tile / group_tiles * group;
    tile -= first * token_tiles;
    const Divisor& height = row_tiles - first < group ? last_group : group;
    const int token_tile = tile / height;
    return {
        .row_tile = first + tile - token_tile * height, .token_tile = token_tile, .batch = batch};
  }
};

// One worker's parts, in the order in which it computes them.
class PartWalk {
 public:
  TILEWRIGHT_HOST_DEVICE constexpr PartWalk(const GemmSchedule& schedule, int worker)
      : worker_(worker), end_(schedule.range_begin(worker + 1)) {}

  // Returns false when no part is left.
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
    part = {schedule.stream_k_tiles + worker_, 0, schedule.chunks};
    worker_ += schedule.workers;
    return part.tile < schedule.tiles;
  }

  // The worker's number, until it has taken a whole tile.
  TILEWRIGHT_HOST_DEVICE constexpr int worker() const { return worker_; }

 private:
  int worker_;  // plus the number of workers for each whole tile that has been taken
  int end_;     // of what is left of the range; 0: the range is done
};

// The first of the workers that compute the other parts of a tile. The last part is that of worker
// `reducer`, and begins inside the tile.
TILEWRIGHT_HOST_DEVICE constexpr int first_worker(const GemmSchedule& schedule, int tile,
                                                  int reducer) {
  int first = reducer - 1;
  while (schedule.range_begin(first) > tile * schedule.chunks) {
    --first;
  }
  return first;
}

}  // namespace tilewright::cuda
