// A block of sixteen values as NVFP4. Who includes this is compiled without fusing products and
// sums (src/CMakeLists.txt): where a product meets the rounding constants of E2M1 and E4M3, a fused
// operation would round once instead of twice.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/nvfp4_recipe.hpp"
#include "cpu/element.hpp"

namespace tilewright::cpu {

template <typename T>
std::uint32_t magnitude_bits(T value) {
  return std::bit_cast<std::uint32_t>(to_float(value)) & nvfp4::kMagnitude;
}

// Writes the codes of a block and returns its scale.
template <typename T>
std::uint8_t quantize_block(const T* x, float e, std::uint8_t* codes) {
  std::uint32_t amax = 0;
  for (int i = 0; i < nvfp4::kBlock; ++i) {
    amax = std::max(amax, magnitude_bits(x[i]));
  }
  const std::uint8_t scale = float_to_e4m3(nvfp4::exact_scale(std::bit_cast<float>(amax), e));
  const float m = nvfp4::code_factor(scale, e);
  std::uint32_t code[nvfp4::kBlock];
  for (int i = 0; i < nvfp4::kBlock; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(to_float(x[i]));
    code[i] = (e2m1_magnitude(std::bit_cast<float>(bits & nvfp4::kMagnitude) * m) & 7u) |
              (bits >> 28 & kE2m1Sign);
  }
  for (int i = 0; i < nvfp4::kBlock / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
  }
  return scale;
}

}  // namespace tilewright::cpu
