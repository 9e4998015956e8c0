// What a thread block of rotate_quantize works on: a block of rows, in registers and in SMEM.
#pragma once

#include "common/columns.hpp"
#include "common/divisor.hpp"
#include "cuda/common/source_row.cuh"
#include "ops/rotate_quantize/params.hpp"

namespace tilewright::cuda::rotate_quantize {

inline constexpr int kThreadValues = 64;                        // neighbours in a row
inline constexpr int kThreadVectors = kThreadValues / kVector;  // of 16 bytes
inline constexpr int kThreadsPerSm = 512;

constexpr int threads_of(int head_dim, int rows) { return rows * head_dim / kThreadValues; }
constexpr int blocks_per_sm(int head_dim, int rows) {
  return kThreadsPerSm / threads_of(head_dim, rows);
}

// threadIdx.x, read where it is needed: between blocks what follows from it is in no register.
__device__ inline unsigned this_thread() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// A thread's part of the block: 64 neighbouring values of a row, in order. If they are rotated, the
// order is another one: value k of the row's lane l is that of dim 64 l + (k ^ swap(l)). The
// rotation deals the row's values out anew, and first_dim() and apart() tell their dims after it.
template <int kHeadDim>
struct Part {
  static constexpr int kLanes = kHeadDim / kThreadValues;  // of a row
  static constexpr int kHalf = kThreadValues / 2;
  static constexpr int kQuarter = kThreadValues / 4;

  __device__ static unsigned row(unsigned thread) { return thread / kLanes; }
  __device__ static int lane(unsigned thread) { return static_cast<int>(thread % kLanes); }

  // Bit 0 of the lane exchanges neighbouring quarters of the values, bit 1 halves.
  __device__ static int swap(int lane) { return kQuarter * lane; }

  // The dim of value 0.
  __device__ static int first_dim(int lane, bool is_rotated) {
    return (is_rotated ? kQuarter : kThreadValues) * lane;
  }
  // How many dims lie between values that are a quarter or a half apart, and whether the rotation
  // has left the second one with the other sign.
  struct Apart {
    int dims;
    bool is_negative;
  };
  template <int kValues>
  __device__ static Apart apart(int lane, bool is_rotated) {
    constexpr int kPartner = kValues / kQuarter;  // so many lanes apart
    if (!is_rotated || kLanes <= kPartner) {
      return {kValues, false};
    }
    return {kPartner * kThreadValues, (lane & kPartner) != 0};
  }

  float x[kThreadValues];
};

// A warp's rows in the order of memory. In each of kThreadVectors steps a lane has eight values of
// a row, kRowStep rows further than before.
template <int kHeadDim>
struct Walk {
  static constexpr int kRowLanes = kHeadDim / kVector;
  static constexpr int kRowStep = 32 / kRowLanes;
  static constexpr int kWarpRows = kRowStep * kThreadVectors;

  __device__ static int row() {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 * kWarpRows + thread % 32 / kRowLanes;
  }
  __device__ static int dim() { return kVector * (static_cast<int>(threadIdx.x) % kRowLanes); }
};

// The block's bytes in SMEM.
template <int kHeadDim, int kRows>
struct ByteTile {
  std::uint32_t words[kRows * kHeadDim / 4];

  // The place of word `word` of a row. Words of a row move by whole vectors of 16 bytes, within
  // their 128 bytes of SMEM.
  __device__ static unsigned place(unsigned row, unsigned word) {
    return place(row / kColumnMultiple, row % kColumnMultiple, word);
  }
  // The same of row 16 group + i. What follows from a constant i is a constant, too.
  __device__ static unsigned place(unsigned group, unsigned i, unsigned word) {
    constexpr unsigned kRowWords = kHeadDim / 4;
    constexpr unsigned kLineRows = kHeadDim == 64 ? 2 : 1;  // of 128 bytes, or more
    const unsigned line = i / kLineRows;
    const unsigned first = group * kColumnMultiple * kRowWords + i % kLineRows * kRowWords + word;
    return (first ^ 4 * (line + group) % 32) + line * kLineRows * kRowWords;
  }
};

template <int kHeadDim, int kRows, bool kHasRope>
struct SharedStorage {
  static constexpr int kThreads = threads_of(kHeadDim, kRows);
  // A thread's values of the next block. With RoPE they are those of this block in FP32: of each
  // eight, the second four are kThreadVectors further than the first.
  uint4 next[kThreads][kHasRope ? 2 * kThreadVectors : kThreadVectors];
  // Of a vector of a lane: the sign bits of eight 16-bit values. One more keeps lanes apart.
  uint4 signs[Part<kHeadDim>::kLanes][kThreadVectors + 1];
  std::uint32_t largest[2][kThreads / 32];  // of the warps; for every other block
  ByteTile<kHeadDim, kRows> tile;

  // Where the values go that this lane has in step i of its warp's walk.
  __device__ uint4* place(int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(threadIdx.x) - lane + lane / kThreadVectors;  // of step 0
    constexpr int kStep = 32 / kThreadVectors;
    return &next[first + kStep * i][(lane ^ first ^ kStep * i) % kThreadVectors];
  }
};

// Blocks in their order: all heads of some rows, then those of the rows behind them.
struct BlockOrder {
  Divisor heads;
  Divisor blocks;  // of a batch entry and head
  int count;       // of all
};

// The block's place: its rows in x, counted from the batch entry's first.
struct Block {
  RowBlock rows;
  int entry;
  int index;
  int head;
  int first;  // row, in the batch entry

  __device__ Block(const RotateQuantizeParams& p, const BlockOrder& order, int number) {
    const int blocks = number / order.heads;
    head = number - blocks * order.heads;
    entry = blocks / order.blocks;
    index = blocks - entry * order.blocks;
    rows = p.blocks.block(entry, index);
    first = rows.first + (p.blocks.cu_seqlens == nullptr ? 0 : p.blocks.cu_seqlens[rows.sequence]);
  }
};

}  // namespace tilewright::cuda::rotate_quantize
