// Random signs of a head's dims, from a seed: the rotation of rotate_quantize().
#pragma once

#include <cstdint>

namespace tilewright {

inline constexpr int kMaxRotatedDims = 256;

// A bit for each dim, which is set where its sign is -1.
struct NegativeDims {
  static constexpr int kBits = 32;

  std::uint32_t words[kMaxRotatedDims / kBits] = {};
};

// Output `index` of SplitMix64, whose state starts at the seed (Steele, Lea and Flood, Fast
// splittable pseudorandom number generators, 2014).
constexpr std::uint64_t split_mix_64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr NegativeDims negative_dims_of(std::uint64_t seed) {
  NegativeDims dims;
  for (int d = 0; d < kMaxRotatedDims; ++d) {
    const auto sign =
        static_cast<std::uint32_t>(split_mix_64(seed, static_cast<unsigned>(d)) >> 63);
    dims.words[d / NegativeDims::kBits] |= sign << d % NegativeDims::kBits;
  }
  return dims;
}

}  // namespace tilewright
