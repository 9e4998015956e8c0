// Who computes what of a product whose output is cut into tiles and whose K into chunks.
//
// Workers (blocks, or clusters of them) first share the shared tiles: their chunks, one tile after
// the other, are dealt out evenly, so that a worker's range may begin and end inside a tile
// (stream-K). The other tiles, a multiple of the workers' number, are then computed whole.
//
// Of a tile cut into parts the worker with the last chunks is the owner: it adds the others' sums
// to its own. Each works its range off backwards, so that its own part for another owner comes
// first, and an owner waits for workers of lower number only: these are blocks that started before
// it, as blocks start in the order of their numbers.
#pragma once

#include "common/divisor.hpp"

namespace tilewright::cuda {

// Chunks [begin, end) of a tile's.
struct TilePart {
  int tile;
  int begin;
  int end;
};

struct GemmSchedule {
  int tiles;
  int shared_tiles;  // the first ones; their chunks are at least as many as the workers
  Divisor chunks;    // of a tile
  int workers;
  int share;   // shared chunks for each worker
  int longer;  // of the workers, the first ones, have one more

  constexpr GemmSchedule(int all_tiles, int first_tiles, int tile_chunks, int all_workers)
      : tiles(all_tiles),
        shared_tiles(first_tiles),
        chunks(tile_chunks),
        workers(all_workers),
        share(first_tiles * tile_chunks / all_workers),
        longer(first_tiles * tile_chunks % all_workers) {}

  // The first chunk, counted through the shared tiles, of a worker's range.
  TILEWRIGHT_HOST_DEVICE constexpr int range_begin(int worker) const {
    return worker * share + (worker < longer ? worker : longer);
  }
};

// How tiles are numbered: those of one product after those of the one before; in a product, groups
// of row tiles (of the weight); in a group, token tile by token tile.
struct TileOrder {
  int row_tiles;
  int token_tiles;
  Divisor group;  // row tiles of a group
  int tokens;     // of a token tile
  Divisor last_group;
  Divisor group_tiles;
  Divisor product_tiles;

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
      : begin_(schedule.range_begin(worker)),
        end_(schedule.range_begin(worker + 1)),
        whole_tile_(schedule.shared_tiles + worker) {}

  // False when nothing is left.
  TILEWRIGHT_HOST_DEVICE constexpr bool next(const GemmSchedule& schedule, TilePart& part) {
    if (begin_ < end_) {
      const int tile = (end_ - 1) / schedule.chunks;
      const int tile_begin = tile * schedule.chunks;
      const int part_begin = begin_ > tile_begin ? begin_ : tile_begin;
      part = {tile, part_begin - tile_begin, end_ - tile_begin};
      end_ = part_begin;
      return true;
    }
    part = {whole_tile_, 0, schedule.chunks};
    whole_tile_ += schedule.workers;
    return part.tile < schedule.tiles;
  }

 private:
  int begin_;
  int end_;
  int whole_tile_;
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
