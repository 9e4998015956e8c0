// Several consumers of a block may compute the same rows of C^T, each over other columns of K. At
// the end of a part they add up their sums through SMEM.
#pragma once

#include <cutlass/arch/barrier.h>

namespace tilewright::cuda {
namespace nvfp4_gemm {

// Sums from the consumers of other columns. Each consumer that finishes the tile gets those of its
// own tokens. `I` is an Instance.
template <typename I, int kOthers = I::C.column_consumers - 1>
struct ColumnSums {
  float4 at[I::C.row_consumers][I::kColumnFinishers][kOthers][I::kOwnSums / 4][128];
};
template <typename I>
struct ColumnSums<I, 0> {};

// Adds up the sums of the consumers of the same rows. Afterwards each of those that finish the tile
// has the sums of its own tokens, in the first of its accumulators. All threads of these consumers
// call it; `barrier` is a named barrier of their own.
template <typename I, typename Accumulator>
__device__ void add_up_columns(ColumnSums<I>& shared, int row_consumer, int column_consumer,
                               int thread, int barrier, Accumulator& sums) {
  constexpr int kThreads = I::C.column_consumers * 128;
#pragma unroll
  for (int finisher = 0; finisher < I::kColumnFinishers; ++finisher) {
    if (finisher == column_consumer) {
#pragma unroll
      for (int i = 0; finisher > 0 && i < I::kOwnSums; ++i) {
        sums(i) = sums(finisher * I::kOwnSums + i);
      }
    } else {
      auto& to = shared.at[row_consumer][finisher][column_consumer - (column_consumer > finisher)];
#pragma unroll
      for (int i = 0; i < I::kOwnSums; i += 4) {
        const int at = finisher * I::kOwnSums + i;
        to[i / 4][thread] = make_float4(sums(at), sums(at + 1), sums(at + 2), sums(at + 3));
      }
    }
  }
  I::Barrier::sync(kThreads, barrier);
  if (column_consumer < I::kColumnFinishers) {
#pragma unroll
    for (int other = 0; other < I::C.column_consumers - 1; ++other) {
#pragma unroll
      for (int i = 0; i < I::kOwnSums; i += 4) {
        const float4 more = shared.at[row_consumer][column_consumer][other][i / 4][thread];
        sums(i) += more.x;
        sums(i + 1) += more.y;
        sums(i + 2) += more.z;
        sums(i + 3) += more.w;
      }
    }
  }
  I::Barrier::sync(kThreads, barrier);  // all sums have been read
}

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
