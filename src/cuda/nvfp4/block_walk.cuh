// Which blocks of a matrix a thread works on.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

// Every `threads`-th block of `rows` rows of `columns` blocks, in row-major order. Stepping takes no
// division.
class BlockWalk {
 public:
  __device__ BlockWalk(int rows, int columns, unsigned thread, unsigned threads)
      : row(static_cast<int>(thread / columns)),
        column(static_cast<int>(thread % columns)),
        rows_(rows),
        columns_(columns),
        row_step_(static_cast<int>(threads / columns)),
        column_step_(static_cast<int>(threads % columns)) {}

  // Over the threads of the whole grid.
  __device__ BlockWalk(int rows, int columns)
      : BlockWalk(rows, columns, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x) {}

  __device__ bool is_inside() const { return row < rows_; }

  __device__ void step() {
    row += row_step_;
    column += column_step_;
    if (column >= columns_) {
      column -= columns_;
      ++row;
    }
  }

  int row;
  int column;

 private:
  int rows_;
  int columns_;
  int row_step_;
  int column_step_;
};

// The thread blocks of a grid that walks `count` items: enough for them, or all that are resident.
inline unsigned walking_blocks(std::int64_t count, int threads, int resident_blocks) {
  const std::int64_t needed = (count + threads - 1) / threads;
  return static_cast<unsigned>(needed < resident_blocks ? needed : resident_blocks);
}

}  // namespace tilewright::cuda
