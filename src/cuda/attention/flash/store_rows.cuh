// From a warpgroup's accumulator to rows of O in global memory, and the rows' statistics.
#pragma once

#include "cuda/attention/flash/work.cuh"
#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// The four lanes of a quad hold word w[i] of piece i each; afterwards lane i holds the four words
// of piece i, in the lanes' order: a 4 x 4 transpose.
__device__ __forceinline__ uint4 transpose_in_quad(const std::uint32_t (&w)[4]) {
  constexpr std::uint32_t kAll = 0xffffffffu;
  const bool is_odd = threadIdx.x & 1;
  const bool is_upper = threadIdx.x & 2;
  // Pieces (0, 1) and (2, 3) between neighbours.
  const std::uint32_t got0 = __shfl_xor_sync(kAll, is_odd ? w[0] : w[1], 1);
  const std::uint32_t got1 = __shfl_xor_sync(kAll, is_odd ? w[2] : w[3], 1);
  const uint2 a = is_odd ? uint2{got0, w[1]} : uint2{w[0], got0};
  const uint2 b = is_odd ? uint2{got1, w[3]} : uint2{w[2], got1};
  // Pairs of words between the quad's halves.
  const std::uint32_t got2 = __shfl_xor_sync(kAll, is_upper ? a.x : b.x, 2);
  const std::uint32_t got3 = __shfl_xor_sync(kAll, is_upper ? a.y : b.y, 2);
  return is_upper ? uint4{got2, got3, b.x, b.y} : uint4{a.x, a.y, got2, got3};
}

// A row's statistics in natural units: its maximum m, l = sum of exp(s - m), and what the sums that
// were taken against another maximum are still to be multiplied by.
struct RowResult {
  float m;
  float l;
  float rescale;
};

// The statistics of a row's keys, with its sink: one more score, whose value is 0.
__device__ inline RowResult with_sink(float m, float l, float sink) {
  const float m_new = fmaxf(m, sink);
  const float reference = m_new == kMinusInf ? 0.0f : m_new;
  const float rescale = exp2_approx((m - reference) * kLog2e);
  return {.m = m_new,
          .l = fmaf(l, rescale, exp2_approx((sink - reference) * kLog2e)),
          .rescale = rescale};
}

__device__ inline RowResult row_result(const AttentionParams& p, int head, float m, float l) {
  return p.sinks ? with_sink(m, l, p.sinks[head * p.sinks_stride])
                 : RowResult{.m = m, .l = l, .rescale = 1.0f};
}

// LSE, m and l of a row, those that are asked for.
__device__ inline void store_statistics(const AttentionParams& p, int batch, int row, int head,
                                        const RowResult& result) {
  if (p.lse != nullptr) {
    *row_pointer<float>(p.lse, p.lse_stride, batch, row, head) =
        result.l > 0.0f ? result.m + logf(result.l) : kMinusInf;
  }
  if (p.row_max != nullptr) {
    *row_pointer<float>(p.row_max, p.row_max_stride, batch, row, head) = result.m;
    *row_pointer<float>(p.row_sum, p.row_sum_stride, batch, row, head) = result.l;
  }
}

// At the end of a tile: O / l in 16 bits, or O in FP32 where un-normalised, and the statistics.
template <typename Element, typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void store_rows(const AttentionParams& p, const FlashTile& tile, int row0,
                           const TensorO& rO, const TensorC& cO, const RowState<kRows>& state,
                           float scale_log2) {
  using namespace cute;
  constexpr int kColumns = decltype(size<1>(rO))::value;
  constexpr RowLanes kLanes = row_lanes<TiledMma>();
  static_assert(kLanes.first == 1 && kLanes.count == 4 && kColumns % 8 == 0,
                "a quad holds a row, in pieces of eight columns, two a lane");
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float l = row_reduce<TiledMma>(state.l[i], [](float a, float b) { return a + b; });
    const RowResult result = row_result(p, tile.head, state.m[i] * (scale_log2 / kLog2e), l);
    const int in_sequence = row0 + get<0>(cO(i, 0));
    const bool exists = in_sequence < tile.q_len;
    const int row = tile.q_start + in_sequence;
    if (exists && lane == 0) {
      store_statistics(p, tile.out_batch, row, tile.head, result);
    }
    if (p.row_max != nullptr) {
      auto* const out = row_pointer<float>(p.o, p.o_stride, tile.out_batch, row, tile.head);
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        if (exists) {
          *reinterpret_cast<float2*>(out + 4 * j + 2 * lane) =
              float2{rO(i, j) * result.rescale, rO(i, j + 1) * result.rescale};
        }
      }
    } else {
      const float factor = result.l > 0.0f ? result.rescale / result.l : 0.0f;
      auto* const out = row_pointer<Element>(p.o, p.o_stride, tile.out_batch, row, tile.head);
#pragma unroll
      for (int j = 0; j < kColumns; j += 8) {
        std::uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          words[k] = pack_x2<Element>(rO(i, j + 2 * k) * factor, rO(i, j + 2 * k + 1) * factor);
        }
        const uint4 piece = transpose_in_quad(words);
        if (exists) {
          *reinterpret_cast<uint4*>(out + 4 * j + 8 * lane) = piece;
        }
      }
    }
  }
}

}  // namespace tilewright::cuda
