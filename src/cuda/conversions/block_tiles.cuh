// How threads share the quantisation blocks (of 16 values, or 32 of MXFP4) of a matrix.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/common/launch.cuh"

namespace tilewright::cuda {

inline constexpr int kBlockThreads = 256;

// How thread blocks cut a matrix into tiles.
struct TileForm {
  int threads = kBlockThreads;
  int lanes = 32;    // a power of two; fewer where a matrix is narrower
  int row_unit = 1;  // a power of two
};

// A thread block takes a tile: `lanes` neighbouring columns, by as many rows as it has threads for.
// A thread keeps its column over many rows, so that its addresses rise in equal steps. grid.x
// counts tiles along columns, grid.y along rows.
struct BlockTiles {
  // For `rows` x `columns` blocks. There are at most `max_grid` thread blocks, or more if it takes
  // more to make the step from a thread's row to its next a multiple of `row_unit`.
  BlockTiles(int rows, int columns, int max_grid, TileForm form = {})
      : log2_lanes(std::bit_width(static_cast<unsigned>(std::min(columns, form.lanes) - 1))) {
    const int lanes = 1 << log2_lanes;
    const int tile_rows = form.threads / lanes;
    grid.x = static_cast<unsigned>(std::min((columns + lanes - 1) / lanes, max_grid));
    const int unit = std::max(form.row_unit / tile_rows, 1);
    grid.y = static_cast<unsigned>(std::clamp(max_grid / static_cast<int>(grid.x) / unit * unit,
                                              unit, (rows + tile_rows - 1) / tile_rows));
  }

  int thread_blocks() const { return static_cast<int>(grid.x * grid.y); }

  int log2_lanes;
  dim3 grid;
};

// A thread's first row and column, and the steps to its next ones.
struct BlockPosition {
  __device__ explicit BlockPosition(int log2_lanes, unsigned threads = kBlockThreads)
      : row(static_cast<int>((blockIdx.y * threads + threadIdx.x) >> log2_lanes)),
        column(static_cast<int>((blockIdx.x << log2_lanes) + threadIdx.x % (1u << log2_lanes))),
        row_step(static_cast<int>((gridDim.y * threads) >> log2_lanes)),
        column_step(static_cast<int>(gridDim.x << log2_lanes)) {}

  int row;
  int column;
  int row_step;
  int column_step;
};

}  // namespace tilewright::cuda
