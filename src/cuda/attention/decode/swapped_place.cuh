// Where a thread of decode_swapped's consumer stands, and how its warpgroup combines what the
// threads have of a query.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace tilewright::cuda {
namespace decode {

// A thread's place among the consumer's warpgroups. Of a tile it has the keys 16 warp + g and
// 16 warp + g + 8, and the queries query(c), one for each column c that it has of S^T and O^T.
struct SwappedPlace {
  int group = static_cast<int>(threadIdx.x) / 128;
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;
  int t = static_cast<int>(threadIdx.x) % 4;

  __device__ int query(int c) const { return 8 * (c / 2) + 2 * t + c % 2; }

  // A barrier of the warpgroup.
  __device__ void sync_group() const {
    constexpr std::uint32_t kFirstBarrier = 2;  // 1 is the consumer's
    cutlass::arch::NamedBarrier::sync(128, kFirstBarrier + group);
  }

  // Combines the values of each query over the keys of the warpgroup, which eight lanes of four
  // warps have: over the lanes, each of which is left with some of the queries, over the warps,
  // through SMEM, and back to all lanes.
  template <int kColumns, int kRows, typename Op>
  __device__ __forceinline__ void over_keys(float (&reduced)[4][kRows], float (&values)[kColumns],
                                            Op op) const {
    combine_halves<kColumns, 4>(values, op);
    constexpr int kLeft = kColumns > 8 ? kColumns / 8 : 1;
    const int first = query(first_column<kColumns>());
    if (g < kColumns) {
#pragma unroll
      for (int i = 0; i < kLeft; ++i) {
        reduced[warp][first + i] = values[i];
      }
    }
    sync_group();
    float all[kLeft];
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      all[i] = op(op(reduced[0][first + i], reduced[1][first + i]),
                  op(reduced[2][first + i], reduced[3][first + i]));
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      values[c] = __shfl_sync(0xffffffffu, all[c % kLeft], lane_with<kColumns>(c) + t);
    }
  }

 private:
  // Of kColumns values that two lanes kOffset apart have, each takes over half, and so on.
  template <int kColumns, int kOffset, int kSize, typename Op>
  __device__ static __forceinline__ void combine_halves(float (&values)[kSize], Op op) {
    if constexpr (kOffset < 32) {
      constexpr int kHalf = kColumns > 1 ? kColumns / 2 : 0;
      const bool takes_upper = kHalf > 0 && (threadIdx.x & kOffset) != 0;
#pragma unroll
      for (int i = 0; i < kColumns - kHalf; ++i) {
        const float kept = takes_upper ? values[kHalf + i] : values[i];
        const float given = takes_upper ? values[i] : values[kHalf + i];
        values[i] = op(kept, __shfl_xor_sync(0xffffffffu, given, kOffset));
      }
      combine_halves<kColumns - kHalf, 2 * kOffset>(values, op);
    }
  }

  // The first column with which combine_halves() leaves this lane: bit i of g chose the i-th half.
  template <int kColumns>
  __device__ int first_column() const {
    return (g & 1) * (kColumns / 2) + (g >> 1 & 1) * (kColumns / 4) + (g >> 2) * (kColumns / 8);
  }
  // The first lane that is left with column c.
  template <int kColumns>
  __device__ static constexpr int lane_with(int c) {
    int lane = 0;
    for (int half = kColumns / 2, bit = 4; half > 0 && bit < 32; half /= 2, bit *= 2) {
      lane += c / half % 2 * bit;
    }
    return lane;
  }
};

}  // namespace decode
}  // namespace tilewright::cuda
