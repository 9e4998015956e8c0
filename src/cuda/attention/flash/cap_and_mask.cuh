// What becomes of a warpgroup's scores before their softmax, where a tile of keys is not plain.
#pragma once

#include <cstdint>

#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// Scores s become softcap * tanh(scale * s / softcap), through 1 - 2 / (1 + e^2x): as exact as
// FP32.
template <typename TensorS>
__device__ void cap(TensorS& rS, float scale, float softcap) {
  const float factor = 2.0f * kLog2e * scale / softcap;
#pragma unroll
  for (int i = 0; i < cute::size(rS); ++i) {
    rS(i) = softcap * (1.0f - __fdividef(2.0f, 1.0f + exp2_approx(rS(i) * factor)));
  }
}

// How many of a row's scores that this thread holds are of keys before `end`: a quad's lanes have
// two neighbours each of every eight keys.
__device__ inline int scores_before(int end) {
  const int keys = end - 2 * static_cast<int>(threadIdx.x % 4);
  return 2 * (keys >> 3) + min(keys & 7, 2);
}

// A word with its first `count` bits set: none where negative.
__device__ inline std::uint32_t first_bits(int count) {
  return count < 32 ? (1u << max(count, 0)) - 1u : 0xffffffffu;
}

// Scores of keys outside [first(row), end(row)) become -infinity; rows and keys count within the
// tile, and `cS` gives each register's (row, key). A score's fate is a bit: seven of a word become
// predicates in one instruction, where comparing takes one a score.
template <typename TensorS, typename TensorC, typename First, typename End>
__device__ void mask_outside(TensorS& rS, const TensorC& cS, const First& first, const End& end) {
  constexpr int kScores = decltype(cute::size<1>(rS))::value;
#pragma unroll
  for (int i = 0; i < cute::size<0>(rS); ++i) {
    const int row = cute::get<0>(cS(i, 0));
    const int first_seen = scores_before(first(row));
    const int end_seen = scores_before(end(row));
#pragma unroll
    for (int word = 0; word < kScores; word += 32) {
      const std::uint32_t seen = first_bits(end_seen - word) & ~first_bits(first_seen - word);
#pragma unroll
      for (int j = word; j < kScores && j < word + 32; ++j) {
        rS(i, j) = seen & (1u << (j - word)) ? rS(i, j) : kMinusInf;
      }
    }
  }
}

}  // namespace tilewright::cuda
