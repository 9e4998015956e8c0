// The flash kernel's work: its tiles, which keys each of them sees, and the order in which thread
// blocks take them.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/attention/tile_walk.cuh"
#include "cuda/common/ticket.cuh"
#include "cuda/common/tma.cuh"
#include "ops/attention/params.hpp"

namespace tilewright::cuda {

// The keys that a query row of a sequence sees: [first(row), end(row)).
struct Visible {
  int kv_len;
  int diagonal;  // query i stands at key i + diagonal
  int left;
  int right;  // no more than there are queries: from the first of them that is all keys. So sums
              // stay within 31 bits, also of rows that a tile has beyond the last query

  __device__ Visible(const AttentionParams& p, int q_len, int kv_len)
      : kv_len(kv_len),
        diagonal(kv_len - q_len),
        left(p.window_left),
        right(p.causal ? 0 : min(p.window_right, q_len)) {}

  __device__ int first(int row) const { return max(row + diagonal - left, 0); }
  __device__ int end(int row) const { return min(max(row + diagonal + right + 1, 0), kv_len); }
};

// A tile of query rows of one head, against its key tiles [kv_first, kv_end), taken from the last
// to the first.
struct FlashTile {
  int batch;      // of q
  int out_batch;  // of o and the row statistics: they count parts of the keys as batches, too
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
  int seen_first;  // keys outside [seen_first, seen_end) are seen by no query of the sequence, and
  int seen_end;    // their values may be NaN
  bool is_end;     // there are no more tiles
};

// What a consumer's rows, from row0 on, see of a tile's key tiles.
struct SeenTiles {
  int end;         // none of them sees key tiles from here on
  int last_len;    // keys that they see of the last one
  int lazy_first;  // those in [lazy_first, lazy_end) are seen whole by every row, and do not follow
  int lazy_end;    // a tile with so few keys that most rows' references would move

  __device__ SeenTiles(const AttentionParams& p, const FlashTile& tile, int row0, int rows,
                       int bc) {
    const Visible keys(p, tile.q_len, tile.kv_len);
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

// The order in which tiles are taken: by heads of all sequences, `section` of them at a time;
// within a section the last rows of every head first: where causal, the longest tiles. The parts of
// a split tile follow each other.
struct FlashSchedule {
  int tiles;      // in all: in tiles of a cluster, like the next; not known for a packed q
  int row_tiles;  // of each sequence
  int heads;      // of all sequences
  int section;
  int group;  // query heads of a key/value head
  int splits;
  int split_tiles;        // key tiles of a part
  TicketCounter tickets;  // none: block i takes the tiles i, i + grid, ...
};

// Tile shapes that tiles are counted in.
struct TileShape {
  int br;
  int bc;
  int cluster;
};

__device__ inline int kv_len_of(const AttentionParams& p, int sequence) {
  if (p.seqused_k != nullptr) {
    return p.seqused_k[sequence];
  }
  const int* const starts = p.cu_seqlens_k;
  return starts != nullptr ? starts[sequence + 1] - starts[sequence] : p.kv_len;
}

// Writes which keys the rows of `tile` from row0 on see, of part `split`.
__device__ inline void write_keys(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                                  TileShape shape, int sequence, int row0, int q_len, int split) {
  const int* const starts = p.cu_seqlens_k;
  const int kv_len = kv_len_of(p, sequence);
  tile.kv_batch = starts ? 0 : sequence;
  tile.kv_start = starts ? starts[sequence] : 0;
  tile.q_len = q_len;
  tile.kv_len = kv_len;

  const Visible keys(p, q_len, kv_len);
  const int last_row = min(row0 + shape.br, q_len) - 1;
  const int part_first = split * s.split_tiles;
  const int end = ceil_div(keys.end(last_row), shape.bc);
  const int kv_first = max(keys.first(row0) / shape.bc, part_first);
  tile.kv_first = kv_first;
  tile.kv_end = max(s.splits > 1 ? min(end, part_first + s.split_tiles) : end, kv_first);
  tile.seen_first = keys.first(0);
  tile.seen_end = starts || p.seqused_k ? kv_len : INT_MAX;  // beyond p.kv_len, TMA reads zeros
}

__device__ inline void write_head(FlashTile& tile, const FlashSchedule& s, int head) {
  tile.head = head;
  tile.kv_head = s.group == 1 ? head : head / s.group;
}

// Writes tile number `index` of sequences of equal length; `rank` is the block's place in its
// cluster.
__device__ inline void write_tile(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                                  TileShape shape, int index, int rank) {
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
  const int row0 = ((s.row_tiles - 1 - rest / width) * shape.cluster + rank) * shape.br;
  tile.batch = batch;
  tile.out_batch = split * p.batch + batch;
  tile.row0 = row0;
  tile.q_start = 0;
  write_head(tile, s, batch_head % p.heads);
  write_keys(tile, p, s, shape, batch, row0, p.q_len, split);
}

// Finds tiles of packed sequences by number. Numbers asked for ascend, so that a warp, 32 sequences
// at a time, walks over the sequences once: of these 32 those with the most keys first, so that the
// last of their tiles to be taken are short.
class PackedTiles {
 public:
  __device__ PackedTiles(const AttentionParams& p, int br) {
    if (p.cu_seqlens_q != nullptr) {
      count(p, br);
    }
  }

  // Is there a tile of that number? Else total() is known.
  __device__ bool find(const AttentionParams& p, int br, int index) {
    while (index >= total() && sequence_ + 32 < p.batch) {
      before_ = total();
      sequence_ += 32;
      count(p, br);
    }
    return index < total();
  }
  __device__ int total() const { return before_ + __shfl_sync(kAll, upto_, 31); }

  // Writes the tile that was found; by a whole warp, of which lane 0 writes.
  __device__ void write(FlashTile& tile, const AttentionParams& p, const FlashSchedule& s,
                        TileShape shape, int index) const {
    index -= before_;
    const int lane = __ffs(__ballot_sync(kAll, index < upto_)) - 1;
    const int before = __shfl_sync(kAll, upto_, max(lane - 1, 0));
    const int sequence = __shfl_sync(kAll, own_, lane);
    if (threadIdx.x % 32 == 0) {
      index -= lane > 0 ? before : 0;
      const int q_start = p.cu_seqlens_q[sequence];
      const int q_len = p.cu_seqlens_q[sequence + 1] - q_start;
      const int row0 = (ceil_div(q_len, shape.br) - 1 - index / p.heads) * shape.br;
      tile.batch = 0;
      tile.out_batch = 0;
      tile.row0 = row0;
      tile.q_start = q_start;
      write_head(tile, s, index % p.heads);
      write_keys(tile, p, s, shape, sequence, row0, q_len, 0);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // Puts the 32 sequences from sequence_ on in order, a lane each, and counts their tiles.
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
      const int q_len = p.cu_seqlens_q[own_ + 1] - p.cu_seqlens_q[own_];
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

// A launch has at most 2^28 rows, parts of the keys counted apart, and no more tiles than rows: a
// tile's number fits a ticket. The first tiles go to blocks by their index, the others by ticket.
__device__ inline int take_ticket(const FlashSchedule& s) {
  return s.tickets.take() + static_cast<int>(gridDim.x);
}

// A block stops at its first ticket beyond the last tile. There are as many tickets as tiles, so
// that whoever has the last one knows that nobody will take another. By a whole warp.
__device__ inline void hand_in_ticket(const FlashSchedule& s, int ticket, int tiles) {
  if (threadIdx.x % 32 == 0 && ticket == tiles - 1 + static_cast<int>(gridDim.x)) {
    s.tickets.clear();
  }
}

// Hands tiles from the warp that schedules them to those that work on them: of one tile O is on its
// way out, one is worked on, and the next is there for the loads.
struct TileRing {
  static constexpr int kSlots = 3;
  using Position = RingPosition<kSlots>;
  cutlass::arch::ClusterBarrier full[kSlots];
  cutlass::arch::ClusterBarrier wanted[kSlots];
  cutlass::arch::ClusterBarrier empty[kSlots];
  FlashTile tiles[kSlots];

  __device__ void init(int readers) {
    for (int slot = 0; slot < kSlots; ++slot) {
      full[slot].init(1);
      wanted[slot].init(1);
      empty[slot].init(readers);
    }
  }

  // By the scheduling warp: a free slot to write to, then put() by the lane that wrote.
  __device__ FlashTile& acquire(const Position& at) {
    empty[at.stage].wait(at.phase ^ 1);
    return tiles[at.stage];
  }
  __device__ void put(const Position& at) { full[at.stage].arrive(); }
  __device__ void wait_until_wanted(const Position& at) { wanted[at.stage].wait(at.phase); }

  // By the loading thread, when it will soon be ready for another tile.
  __device__ void want_next(const Position& at) { wanted[at.stage].arrive(); }

  // By the readers: the tile is there until each of their warps has released it.
  __device__ const FlashTile& wait(const Position& at) {
    full[at.stage].wait(at.phase);
    return tiles[at.stage];
  }
  __device__ void release(const Position& at) {
    if (threadIdx.x % 32 == 0) {
      empty[at.stage].arrive();
    }
  }
};

}  // namespace tilewright::cuda
