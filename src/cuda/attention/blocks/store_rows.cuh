// Stores rows of O from an accumulator's registers, for tiles that TMA cannot store.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/common/wgmma_layout.cuh"

namespace tilewright::cuda {

// A 4 x 4 transpose between the four lanes of a quad. Each lane comes with one word w[i] of each
// piece i; afterwards lane i holds the four words of piece i, in the lanes' order.
__device__ __forceinline__ uint4 transpose_in_quad(const std::uint32_t (&w)[4]) {
  constexpr std::uint32_t kAll = 0xffffffffu;
  const bool is_odd = threadIdx.x & 1;
  const bool is_upper = threadIdx.x & 2;
  // Neighbours exchange words of pieces (0, 1) and (2, 3).
  const std::uint32_t got0 = __shfl_xor_sync(kAll, is_odd ? w[0] : w[1], 1);
  const std::uint32_t got1 = __shfl_xor_sync(kAll, is_odd ? w[2] : w[3], 1);
  const uint2 a = is_odd ? uint2{got0, w[1]} : uint2{w[0], got0};
  const uint2 b = is_odd ? uint2{got1, w[3]} : uint2{w[2], got1};
  // The quad's halves exchange pairs of words.
  const std::uint32_t got2 = __shfl_xor_sync(kAll, is_upper ? a.x : b.x, 2);
  const std::uint32_t got3 = __shfl_xor_sync(kAll, is_upper ? a.y : b.y, 2);
  return is_upper ? uint4{got2, got3, b.x, b.y} : uint4{a.x, a.y, got2, got3};
}

// Stores this thread's row i of O to `out` if the row exists: in FP32, or rounded to 16 bits if T
// is bfloat16_t or half_t. All lanes of a quad call it.
template <typename TiledMma, typename T, typename TensorO>
__device__ __forceinline__ void store_row(T* out, const TensorO& rO, int i, bool exists) {
  constexpr int kColumns = decltype(cute::size<1>(rO))::value;
  constexpr RowLanes kLanes = row_lanes<TiledMma>();
  static_assert(kLanes.first == 1 && kLanes.count == 4 && kColumns % 8 == 0,
                "a quad holds a row, in pieces of eight columns, two a lane");
  const int lane = threadIdx.x % 4;
  if constexpr (cute::is_same_v<T, float>) {
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      if (exists) {
        *reinterpret_cast<float2*>(out + 4 * j + 2 * lane) = float2{rO(i, j), rO(i, j + 1)};
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kColumns; j += 8) {
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = pack_x2<T>(rO(i, j + 2 * k), rO(i, j + 2 * k + 1));
      }
      const uint4 piece = transpose_in_quad(words);
      if (exists) {
        *reinterpret_cast<uint4*>(out + 4 * j + 8 * lane) = piece;
      }
    }
  }
}

}  // namespace tilewright::cuda
