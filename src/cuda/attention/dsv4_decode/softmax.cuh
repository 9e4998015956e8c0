// The softmax of a key tile of dsv4_attention(). P = exp2(s - r) with a reference r that is a whole
// number, in units of log2, and follows the row's maximum lazily: it moves only if a score exceeds
// it by more than kSlack, so that O is hardly ever rescaled, and then exactly. The references of an
// item's tiles follow from the scores alone, whoever computes them: r of a tile is r of the tile
// before, or the tile's maximum rounded up.
//
// A row keeps two sums. `sum`, of the exact P, is l, of the LSE. `rounded_sum`, of P as it is
// multiplied with V, divides O, so that weights add up to 1.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr float kSlack = 8.0f;  // in units of log2
inline constexpr int kThreadRows = 2;  // rows of an accumulator that a thread has

// The row of an item that is row i of this thread's accumulator.
__device__ inline int row_of_thread(int i, int thread = this_thread()) {
  return thread % kWarpgroupThreads / 32 * 16 + thread % 32 / 4 + 8 * i;
}

__device__ inline float next_reference(float reference, float max) {
  return max > reference + kSlack ? ceilf(max) : reference;
}

// What sums that were taken against one reference are multiplied by to be against another.
__device__ inline float rescale_of(float from, float to) {
  return from == to ? 1.0f : exp2_approx(from - to);
}

// A set of a tile's keys has a bit for each: those before `end`.
__device__ inline std::uint64_t keys_before(int end) {
  return end >= kTileKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << max(end, 0)) - 1;
}

// The positions of a tile that a row sees.
__device__ inline std::uint64_t keys_seen(const Unit& unit, const ItemShape& shape,
                                          const TileAt& tile, int row) {
  const int token = row / shape.tile_heads;
  if (token >= unit.tokens) {
    return 0;
  }
  const int first = unit.begin[tile.source] + tile.key0;
  return keys_before(unit.sees_end[tile.source][token] - first) &
         ~keys_before(unit.sees_begin[tile.source][token] - first);
}

// Scores of keys that a row does not see, or that do not exist, become -infinity.
template <typename TensorS>
__device__ void mask(TensorS& rS, const Unit& unit, const ItemShape& shape, const TileAt& tile,
                     std::uint64_t exist) {
  std::uint64_t keys[kThreadRows];
  bool are_all = true;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    keys[i] = exist & keys_seen(unit, shape, tile, row_of_thread(i));
    are_all &= keys[i] == ~std::uint64_t{0};
  }
  if (__all_sync(0xffffffffu, are_all)) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const std::uint64_t from_own = keys[i] >> 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {  // key 8 * (j / 2) + 2 * (lane % 4) + j % 2
      if ((from_own >> (8 * (j / 2) + j % 2) & 1) == 0) {
        rS(i, j) = kMinusInf;
      }
    }
  }
}

// A row's statistics over the keys so far.
struct RowSoFar {
  float reference = kMinusInf;
  float max = kMinusInf;
  float sum = 0.0f;
  float rounded_sum = 0.0f;
};

__device__ inline RowSoFar statistics_of(const TileRows& rows, int row) {
  return {rows.reference[row], rows.max[row], rows.sum[row], rows.rounded_sum[row]};
}
__device__ inline void set_statistics(TileRows& rows, int row, const RowSoFar& statistics) {
  rows.reference[row] = statistics.reference;
  rows.max[row] = statistics.max;
  rows.sum[row] = statistics.sum;
  rows.rounded_sum[row] = statistics.rounded_sum;
}

// The maxima of the thread's rows of S, in units of log2.
template <typename Mma, typename TensorS>
__device__ void row_maxima(const TensorS& rS, float scale_log2, float (&max)[kThreadRows]) {
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    max[i] = kMinusInf;
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      max[i] = fmaxf(max[i], rS(i, j));
    }
    max[i] = row_max<Mma>(max[i]) * scale_log2;
  }
}

// What a tile adds to a row's sums.
struct TileSums {
  float exact[kThreadRows];
  float rounded[kThreadRows];
};

// Scores (rows, keys) become P, which goes to sP (64, 64) in BF16.
template <typename Mma, typename TensorS>
__device__ TileSums weigh(const TensorS& rS, float scale_log2,
                          const float (&reference)[kThreadRows], Element* sP) {
  TileSums sums;
  const int thread = this_thread();
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const float subtracted = reference[i] == kMinusInf ? 0.0f : reference[i];
    float exact = 0.0f;
    float rounded = 0.0f;
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); j += 2) {
      const float low = exp2_approx(fmaf(rS(i, j), scale_log2, -subtracted));
      const float high = exp2_approx(fmaf(rS(i, j + 1), scale_log2, -subtracted));
      exact += low + high;
      const std::uint32_t pair = pack_bf16x2(low, high);
      rounded += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
      Element* const vector = vector_of(sP, row_of_thread(i, thread), j / 2);
      *reinterpret_cast<std::uint32_t*>(vector + 2 * (thread % 4)) = pair;
    }
    sums.exact[i] = row_sum<Mma>(exact);
    sums.rounded[i] = row_sum<Mma>(rounded);
  }
  return sums;
}

// A row's statistics with those of one more tile.
__device__ inline RowSoFar with_tile(const RowSoFar& row, float reference, float max, float exact,
                                     float rounded) {
  const float factor = rescale_of(row.reference, reference);
  return {.reference = reference,
          .max = fmaxf(row.max, max),
          .sum = fmaf(row.sum, factor, exact),
          .rounded_sum = fmaf(row.rounded_sum, factor, rounded)};
}

// Scales O from one reference of each row to another.
template <typename TensorO>
__device__ void move_references(TensorO& rO, const float (&from)[kThreadRows],
                                const float (&to)[kThreadRows]) {
  float factor[kThreadRows];
  bool moves = false;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    factor[i] = rescale_of(from[i], to[i]);
    moves |= from[i] != to[i];
  }
  if (__any_sync(0xffffffffu, moves)) {
    scale_rows(rO, factor);
  }
}

}  // namespace tilewright::cuda::dsv4
