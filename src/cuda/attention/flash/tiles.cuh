// The tiles of the flash kernel: which there are, the keys that each sees, and the order in which
// blocks take them.
#pragma once

#include <climits>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/visible_keys.cuh"
#include "cuda/attention/flash/configs.hpp"
#include "cuda/common/ticket.cuh"
#include "ops/attention/params.hpp"

namespace tilewright::cuda {

__device__ inline VisibleKeys visible_keys(const AttentionParams& p, int q_len, int kv_len) {
  return {q_len, kv_len, p.causal, p.window};
}

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
};

// Which of a tile's key tiles a consumer's rows, from row0 on, see.
struct SeenTiles {
  int end;         // no row sees this key tile or a later one
  int last_len;    // keys that the rows see of key tile end - 1
  int lazy_first;  // every row sees key tiles [lazy_first, lazy_end) whole. None of these follows a
  int lazy_end;    // tile with so few keys that most rows' references would move in the next step

  __device__ SeenTiles(const AttentionParams& p, const FlashTile& tile, int row0, int rows,
                       int bc) {
    const VisibleKeys keys = visible_keys(p, tile.q_len, tile.kv_len);
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
  int split_tiles;        // key tiles of a split
  TicketCounter tickets;  // without one, block i takes the tiles i, i + grid, ...
};

__device__ inline int kv_len_of(const AttentionParams& p, int sequence) {
  if (p.kv_lengths.used != nullptr) {
    return p.kv_lengths.used[sequence];
  }
  const int* const starts = p.kv_lengths.cu_seqlens;
  return starts != nullptr ? starts[sequence + 1] - starts[sequence] : p.kv_len;
}

// Writes to `tile` which keys of split `split` its rows, from row0 on, see.
__device__ inline void write_keys(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                                  const FlashConfig& config, int sequence, int row0, int q_len,
                                  int split) {
  const int* const starts = p.kv_lengths.cu_seqlens;
  const int kv_len = kv_len_of(p, sequence);
  tile.kv_batch = starts ? 0 : sequence;
  tile.kv_start = starts ? starts[sequence] : 0;
  tile.q_len = q_len;
  tile.kv_len = kv_len;

  const VisibleKeys keys = visible_keys(p, q_len, kv_len);
  const int last_row = min(row0 + config.br(), q_len) - 1;
  const int split_first = split * s.split_tiles;
  const int end = ceil_div(keys.end(last_row), config.bc);
  const int kv_first = max(keys.first(row0) / config.bc, split_first);
  tile.kv_first = kv_first;
  tile.kv_end = max(s.splits > 1 ? min(end, split_first + s.split_tiles) : end, kv_first);
  tile.seen_first = keys.first(0);
  tile.seen_end =
      starts || p.kv_lengths.used ? kv_len : INT_MAX;  // beyond p.kv_len, TMA reads zeros
}

__device__ inline void write_head(FlashTile& tile, const FlashSchedule& s, int head) {
  tile.head = head;
  tile.kv_head = s.group == 1 ? head : head / s.group;
}

// Writes tile number `index` of sequences that all have the same length. `rank` is the block's rank
// in its cluster.
__device__ inline void write_tile(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                                  const FlashConfig& config, int index, int rank) {
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
  write_keys(tile, p, s, config, batch, row0, p.q_len, split);
}

// Finds the tiles of packed sequences by number. The numbers asked for ascend, so that the warp
// walks over the sequences once, 32 at a time. Of 32 sequences, those with the most keys come
// first, so that the last tiles to be taken are short.
class PackedTiles {
 public:
  __device__ PackedTiles(const AttentionParams& p, int br) {
    if (p.packed_q.cu_seqlens != nullptr) {
      count(p, br);
    }
  }

  // Is there a tile with this number? If not, total() is the number of all tiles.
  __device__ bool find(const AttentionParams& p, int br, int index) {
    while (index >= total() && sequence_ + 32 < p.batch) {
      before_ = total();
      sequence_ += 32;
      count(p, br);
    }
    return index < total();
  }
  __device__ int total() const { return before_ + __shfl_sync(kAll, upto_, 31); }

  // Writes the tile that find() found. All lanes call it; lane 0 writes.
  __device__ void write(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                        const FlashConfig& config, int index) const {
    index -= before_;
    const int lane = __ffs(__ballot_sync(kAll, index < upto_)) - 1;
    const int before = __shfl_sync(kAll, upto_, max(lane - 1, 0));
    const int sequence = __shfl_sync(kAll, own_, lane);
    if (threadIdx.x % 32 == 0) {
      index -= lane > 0 ? before : 0;
      const int q_start = p.packed_q.cu_seqlens[sequence];
      const int q_len = p.packed_q.cu_seqlens[sequence + 1] - q_start;
      const int row0 = (ceil_div(q_len, config.br()) - 1 - index / p.heads) * config.br();
      tile.batch = 0;
      tile.out_batch = 0;
      tile.row0 = row0;
      tile.q_start = q_start;
      write_head(tile, s, index % p.heads);
      write_keys(tile, p, s, config, sequence, row0, q_len, 0);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // Sorts the 32 sequences from sequence_ on, one for each lane, and counts their tiles.
  __device__ void count(const AttentionParams& p, int br) {
    const int lane = threadIdx.x % 32;
    const int kv_len = sequence_ + lane < p.batch ? kv_len_of(p, sequence_ + lane) : -1;
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
      upto_ = ceil_div(q_len, br) * p.heads;
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
