// Soft cap and masks, which a warpgroup applies to its accumulator of scores.
#pragma once

#include <cstdint>
#include <cute/tensor.hpp>

#include "cuda/attention/blocks/fp8_layout.cuh"
#include "cuda/common/numeric.cuh"

namespace tilewright::cuda {

// tanh x = 1 - 2 / (1 + e^2x), which is as exact as FP32 allows. `twice_x` is 2x in units of log2.
__device__ inline float tanh_of_half(float twice_x) {
  return 1.0f - __fdividef(2.0f, 1.0f + exp2_approx(twice_x));
}

// tanh x where |x| is at most kMostSmall: an odd polynomial, within 5e-8 of it, relative.
inline constexpr float kMostSmall = 0.35f;
__device__ inline float tanh_of_small(float x) {
  const float square = x * x;
  const float high = fmaf(-0.0491485f, square, 0.13299825f);
  return x * fmaf(fmaf(high, square, -0.33332663f), square, 1.0f);
}

// softcap * tanh(scale * s / softcap), where `factor` is cap_factor(scale, softcap).
__device__ inline float cap_factor(float scale, float softcap) {
  return 2.0f * kLog2e * scale / softcap;
}
__device__ inline float capped(float s, float factor, float softcap) {
  return softcap * tanh_of_half(s * factor);
}

// Caps all scores.
template <typename TensorS>
__device__ void cap(TensorS& rS, float scale, float softcap) {
  const float factor = cap_factor(scale, softcap);
#pragma unroll
  for (int i = 0; i < cute::size(rS); ++i) {
    rS(i) = capped(rS(i), factor, softcap);
  }
}

// Scores s become tanh(factor * s). Special functions are the limit. A score takes three of them,
// or the softmax's alone if it is small: so a warp asks whether all of its scores are small. What
// becomes of a score does not depend on the others. With kMayBeSmall false, which takes fewer
// registers, no score counts as small.
template <bool kMayBeSmall, typename TensorS>
__device__ void cap_to_one(TensorS& rS, float factor) {
  bool all_small = false;
  if constexpr (kMayBeSmall) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < cute::size(rS); ++i) {
      largest = fmaxf(largest, fabsf(rS(i)));
    }
    all_small = __all_sync(0xffffffffu, largest * fabsf(factor) <= kMostSmall);
  }
  if (all_small) {
#pragma unroll
    for (int i = 0; i < cute::size(rS); ++i) {
      rS(i) = tanh_of_small(rS(i) * factor);
    }
  } else {
#pragma unroll
    for (int i = 0; i < cute::size(rS); ++i) {
      const float x = rS(i) * factor;
      const float any = tanh_of_half(2.0f * kLog2e * x);
      rS(i) = kMayBeSmall && fabsf(x) <= kMostSmall ? tanh_of_small(x) : any;
    }
  }
}

// Scores of keys from keys.limit(row) on become -infinity. The tile begins at row `row0` and key
// `key0`; `cS` gives each register's (row, key) within it.
template <typename TensorS, typename TensorC, typename Keys>
__device__ void mask(TensorS& rS, const TensorC& cS, const Keys& keys, int row0, int key0) {
#pragma unroll
  for (int i = 0; i < cute::size<0>(rS); ++i) {
    const int limit = keys.limit(row0 + cute::get<0>(cS(i, 0))) - key0;
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      const int key = cute::get<1>(cS(i, j));  // signed: the limit may be negative
      rS(i, j) = key < limit ? rS(i, j) : kMinusInf;
    }
  }
}

// How many of the scores of a row that this thread holds belong to keys before `end`. Of every
// eight keys, each of the four lanes of a row holds two neighbours.
__device__ inline int scores_before(int end) {
  const int keys = end - 2 * static_cast<int>(threadIdx.x % 4);
  return 2 * (keys >> 3) + min(keys & 7, 2);
}

// A word whose lowest `count` bits are set; none are if `count` is negative.
__device__ inline std::uint32_t first_bits(int count) {
  return count < 32 ? (1u << max(count, 0)) - 1u : 0xffffffffu;
}

// Scores of keys outside [first(row), end(row)) become -infinity. Rows and keys count within the
// tile; `cS` gives each register's (row, key). A score has a bit that says whether it is seen: one
// instruction makes predicates of seven bits, where comparing takes an instruction for each score.
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

// mask_outside() for a tile of 128 keys of which the even ones come first (KeyOrder::kByKeys).
template <typename TensorS, typename TensorC, typename First, typename End>
__device__ void mask_reordered(TensorS& rS, const TensorC& cS, const First& first, const End& end) {
  constexpr int kScores = 32;
  static_assert(decltype(cute::size<1>(rS))::value == kScores);
#pragma unroll
  for (int i = 0; i < cute::size<0>(rS); ++i) {
    const int row = cute::get<0>(cS(i, 0));
    const int lane = cute::get<1>(cS(i, 0)) / 2;  // of the four that share the row
    const std::uint32_t seen =
        reordered_bits_before(end(row), lane) & ~reordered_bits_before(first(row), lane);
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      rS(i, j) = seen & (1u << j) ? rS(i, j) : kMinusInf;
    }
  }
}

}  // namespace tilewright::cuda
