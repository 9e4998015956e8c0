// Tiles of query rows of the kernels of flash's kind: which there are, the keys that each sees, and
// the order in which blocks take them.
//
// `Sequences` tells of a call's sequences. It has the operation's params and, for a tile of a kind
// of its own, writes what depends on where keys lie:
//   params()                the params, with batch, heads, q_len and packed_q
//   kv_len(sequence)        its keys
//   has_tiles(q_len)        is a packed sequence of q_len queries computed?
//   keeps_rows_together()   do all rows of a head follow each other, or all heads of some rows?
//   write_keys(tile, schedule, config, sequence, row0, q_len, split)
//                           the keys that the tile's rows, from row0 on, see of split `split`
#pragma once

#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/visible_keys.cuh"
#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {

// A tile of query rows of one head, and the key tiles [kv_first, kv_end) that it sees. Consumers
// take key tiles from the last to the first.
struct FlashTile {
  int batch;      // of q
  int out_batch;  // of o and the row statistics, where each split counts as a batch
  int head;
  int row0;     // within the sequence
  int q_start;  // the sequence's first row in memory
  int q_len;
  int kv_batch;
  int kv_head;
  int kv_start;
  int kv_len;
  int kv_first;
  int kv_end;
  int seen_first;  // no query of the sequence sees keys outside [seen_first, seen_end), and their
  int seen_end;    // values may be NaN
  bool is_end;     // there are no more tiles

  template <typename Params>
  __device__ VisibleKeys visible_keys(const Params& p) const {
    return {q_len, kv_len, p.causal, p.window};
  }
};

// Which of a tile's key tiles a consumer's rows, from row0 on, see.
struct SeenTiles {
  int end;         // no row sees this key tile or a later one
  int last_len;    // keys that the rows see of key tile end - 1
  int lazy_first;  // every row sees key tiles [lazy_first, lazy_end) whole. None of these follows a
  int lazy_end;    // tile with so few keys that most rows' references would move in the next step

  template <typename Params, typename Tile>
  __device__ SeenTiles(const Params& p, const Tile& tile, int row0, int rows, int bc) {
    const VisibleKeys keys = tile.visible_keys(p);
    const int seen_by_first = keys.end(row0);
    const int seen_by_last = keys.end(row0 + rows - 1);
    end = min(max(ceil_div(seen_by_last, bc), tile.kv_first + 1), tile.kv_end);
    last_len = seen_by_last - (end - 1) * bc;
    lazy_first = ceil_div(keys.first(row0 + rows - 1), bc);
    lazy_end = seen_by_first / bc;
    const bool begins_with_few =
        !p.causal && lazy_end < end && 2 * (seen_by_first - lazy_end * bc) < bc;
    lazy_end -= begins_with_few;
  }
};

// The order in which tiles are taken: section by section, where a section is `section` heads,
// counted over all sequences. Within a section, every head's last rows come first; under a causal
// mask they are the longest tiles. The splits of a tile follow each other. A launch has at most
// 2^28 rows (each split counts its own) and no more tiles than rows, so that a tile's number fits a
// ticket.
struct FlashSchedule {
  int tiles;      // of all, in tiles of a cluster as row_tiles is; not set for packed queries
  int row_tiles;  // of each sequence
  int heads;      // of all sequences
  int section;
  int group;  // query heads for each key head
  int splits;
  int split_tiles;        // key tiles of a split, or the fewest of one
  TicketCounter tickets;  // without one, block i takes the tiles i, i + grid, ...
};

// Writes to `tile` which of the `keys` that its rows, from row0 on, see are those of split `split`.
// A split is split_tiles key tiles, if there are several.
template <typename Config>
__device__ void write_key_tiles(FlashTile& tile, const VisibleKeys& keys, const Config& config,
                                int row0, int q_len, int splits, int split, int split_tiles) {
  const int last_row = min(row0 + config.br(), q_len) - 1;
  const int split_first = split * split_tiles;
  const int end = ceil_div(keys.end(last_row), config.bc);
  const int kv_first = max(keys.first(row0) / config.bc, split_first);
  tile.kv_first = kv_first;
  tile.kv_end = max(splits > 1 ? min(end, split_first + split_tiles) : end, kv_first);
  tile.seen_first = keys.first(0);
}

__device__ inline void write_head(FlashTile& tile, const FlashSchedule& s, int head) {
  tile.head = head;
  tile.kv_head = s.group == 1 ? head : head / s.group;
}

// Writes tile number `index` of sequences that all have the same length. `rank` is the block's rank
// in its cluster.
template <typename Tile, typename Sequences, typename Config>
__device__ void write_tile(Tile& tile, const Sequences& sequences, const FlashSchedule& s,
                           const Config& config, int index, int rank) {
  const auto& p = sequences.params();
  int split = 0;
  if (s.splits > 1) {
    split = index % s.splits;
    index /= s.splits;
  }
  const int per_section = s.section * s.row_tiles;
  const int first_head = index / per_section * s.section;
  const int width = min(s.section, s.heads - first_head);
  const int rest = index % per_section;
  const int batch_head = first_head + rest % width;
  const int batch = batch_head / p.heads;
  const int row0 = ((s.row_tiles - 1 - rest / width) * config.cluster + rank) * config.br();
  tile.batch = batch;
  tile.out_batch = split * p.batch + batch;
  tile.row0 = row0;
  tile.q_start = 0;
  write_head(tile, s, batch_head % p.heads);
  sequences.write_keys(tile, s, config, batch, row0, p.q_len, split);
}

// Finds the tiles of packed sequences by number. The numbers asked for ascend, so that the warp
// walks over the sequences once, 32 at a time. Of 32 sequences, those with the most keys come
// first, so that the last tiles to be taken are short.
template <typename Sequences>
class PackedTiles {
 public:
  __device__ PackedTiles(const Sequences& sequences, int br) {
    if (sequences.params().packed_q.cu_seqlens != nullptr) {
      count(sequences, br);
    }
  }

  // Is there a tile with this number? If not, total() is the number of all tiles.
  __device__ bool find(const Sequences& sequences, int br, int index) {
    while (index >= total() && sequence_ + 32 < sequences.params().batch) {
      before_ = total();
      sequence_ += 32;
      count(sequences, br);
    }
    return index < total();
  }
  __device__ int total() const { return before_ + __shfl_sync(kAll, upto_, 31); }

  // Writes the tile that find() found. All lanes call it; lane 0 writes.
  template <typename Tile, typename Config>
  __device__ void write(Tile& tile, const Sequences& sequences, const FlashSchedule& s,
                        const Config& config, int index) const {
    const auto& p = sequences.params();
    index -= before_;
    const int lane = __ffs(__ballot_sync(kAll, index < upto_)) - 1;
    const int before = __shfl_sync(kAll, upto_, max(lane - 1, 0));
    const int sequence = __shfl_sync(kAll, own_, lane);
    if (threadIdx.x % 32 == 0) {
      index -= lane > 0 ? before : 0;
      const int q_start = p.packed_q.cu_seqlens[sequence];
      const int q_len = p.packed_q.cu_seqlens[sequence + 1] - q_start;
      const int row_tiles = ceil_div(q_len, config.br());
      const bool is_by_head = sequences.keeps_rows_together();
      const int head = is_by_head ? index / row_tiles : index % p.heads;
      const int row_tile = is_by_head ? index % row_tiles : index / p.heads;
      const int row0 = (row_tiles - 1 - row_tile) * config.br();
      tile.batch = 0;
      tile.out_batch = 0;
      tile.row0 = row0;
      tile.q_start = q_start;
      write_head(tile, s, head);
      sequences.write_keys(tile, s, config, sequence, row0, q_len, 0);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // Sorts the 32 sequences from sequence_ on, one for each lane, and counts their tiles.
  __device__ void count(const Sequences& sequences, int br) {
    const auto& p = sequences.params();
    const int lane = threadIdx.x % 32;
    const int kv_len = sequence_ + lane < p.batch ? sequences.kv_len(sequence_ + lane) : -1;
    int place = 0;  // of this lane's sequence
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int other = __shfl_sync(kAll, kv_len, i);
      place += other > kv_len || (other == kv_len && i < lane);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (__shfl_sync(kAll, place, i) == lane) {
        own_ = sequence_ + i;
      }
    }
    upto_ = 0;
    if (own_ < p.batch) {
      const int q_len = p.packed_q.cu_seqlens[own_ + 1] - p.packed_q.cu_seqlens[own_];
      upto_ = sequences.has_tiles(q_len) ? ceil_div(q_len, br) * p.heads : 0;
    }
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, upto_, step);
      upto_ += lane >= step ? other : 0;
    }
  }

  int sequence_ = 0;  // first of the group
  int before_ = 0;    // tiles before the group
  int own_ = 0;       // this lane's sequence
  int upto_ = 0;      // tiles of the group, up to this lane's sequence
};

}  // namespace tilewright::cuda
