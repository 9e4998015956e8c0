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
__device__ inline int row_of_thread(int i) {
  return threadIdx.x % kWarpgroupThreads / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
}

// What a thread knows of its rows, over the tiles so far.
struct RowsSoFar {
  float reference[kThreadRows] = {kMinusInf, kMinusInf};
  float max[kThreadRows] = {kMinusInf, kMinusInf};
  float sum[kThreadRows] = {};
  float rounded_sum[kThreadRows] = {};
};

__device__ inline float next_reference(float reference, float max) {
  return max > reference + kSlack ? ceilf(max) : reference;
}

// The keys of a tile that a row sees: those from `begin` to `end`, of which `exist` has a bit.
struct KeysSeen {
  int begin;
  int end;
};

__device__ inline KeysSeen keys_seen(const Unit& unit, const ItemShape& shape, const TileAt& tile,
                                     int row) {
  const int token = row / shape.tile_heads;
  if (token >= unit.tokens) {
    return {0, 0};
  }
  const int first = unit.begin[tile.source] + tile.key0;
  return {unit.sees_begin[tile.source][token] - first, unit.sees_end[tile.source][token] - first};
}

// Scores of keys that a row does not see become -infinity.
template <typename TensorS, typename TensorC>
__device__ void mask(TensorS& rS, const TensorC& cS, const Unit& unit, const ItemShape& shape,
                     const TileAt& tile, std::uint64_t exist) {
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const KeysSeen seen = keys_seen(unit, shape, tile, row_of_thread(i));
    if (seen.begin <= 0 && seen.end >= kTileKeys && exist == ~std::uint64_t{0}) {
      continue;
    }
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      const int key = cute::get<1>(cS(i, j));
      if (key < seen.begin || key >= seen.end || (exist >> key & 1) == 0) {
        rS(i, j) = kMinusInf;
      }
    }
  }
}

// Scores (rows, keys) become P, which goes to sP (64, 64) in BF16, and the rows' statistics of this
// tile to `rows`.
template <typename Mma, typename TensorS>
__device__ void softmax(TensorS& rS, const RowsSoFar& before, float scale_log2, Element* sP,
                        TileRows& rows) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    float max = kMinusInf;
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      max = fmaxf(max, rS(i, j));
    }
    max = row_max<Mma>(max) * scale_log2;
    const float reference = next_reference(before.reference[i], max);
    const float subtracted = reference == kMinusInf ? 0.0f : reference;
    float sum = 0.0f;
    float rounded_sum = 0.0f;
    const int row = row_of_thread(i);
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); j += 2) {
      const float low = exp2_approx(fmaf(rS(i, j), scale_log2, -subtracted));
      const float high = exp2_approx(fmaf(rS(i, j + 1), scale_log2, -subtracted));
      sum += low + high;
      const std::uint32_t pair = pack_bf16x2(low, high);
      rounded_sum += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
      *reinterpret_cast<std::uint32_t*>(vector_of(sP, row, j / 2) + 2 * lane) = pair;
    }
    sum = row_sum<Mma>(sum);
    rounded_sum = row_sum<Mma>(rounded_sum);
    if (lane == 0) {
      rows.reference[row] = reference;
      rows.max[row] = max;
      rows.sum[row] = sum;
      rows.rounded_sum[row] = rounded_sum;
    }
  }
}

// Takes up a tile's statistics, in the order of tiles. Returns the factors by which O must be scaled
// before its P V is added; `moves` says whether any of them is not 1.
struct Rescale {
  float factor[kThreadRows];
  bool moves;
};

__device__ inline Rescale take_up(RowsSoFar& rows, const TileRows& tile) {
  Rescale rescale{.moves = false};
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int row = row_of_thread(i);
    const float reference = tile.reference[row];
    const bool moves = reference != rows.reference[i];
    const float factor = moves ? exp2_approx(rows.reference[i] - reference) : 1.0f;
    rescale.factor[i] = factor;
    rescale.moves |= moves;
    rows.reference[i] = reference;
    rows.max[i] = fmaxf(rows.max[i], tile.max[row]);
    rows.sum[i] = fmaf(rows.sum[i], factor, tile.sum[row]);
    rows.rounded_sum[i] = fmaf(rows.rounded_sum[i], factor, tile.rounded_sum[row]);
  }
  return rescale;
}

}  // namespace tilewright::cuda::dsv4
