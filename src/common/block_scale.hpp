// Conversions of block scales between their bits and float. E4M3 here is e4m3fn, which has no
// infinities: it goes up to 448, in multiples of 2^-9 below 2^-6, and 0x7f is NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace tilewright {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint32_t kE4m3NaN = 0x7f;

// Rounds to nearest, ties to even; infinities, too, become 448. A NaN stays one, with its sign.
constexpr std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 7;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint8_t>(sign | kE4m3NaN);
  }
  if (magnitude >= 0x43e00000u) {  // from 448 on
    return static_cast<std::uint8_t>(sign | (kE4m3NaN - 1));
  }
  if (magnitude < 0x3c800000u) {  // below 2^-6: adding 2^14 rounds to multiples of 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u));
  }
  const std::uint32_t round = 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((magnitude + round - 0x3c000000u) >> 20));
}

// Puts the bits where a float has its exponent and mantissa; the exponent is then 120 too low.
constexpr float e4m3_to_float(std::uint32_t bits) {
  if ((bits & 0x7fu) == kE4m3NaN) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float magnitude = std::bit_cast<float>((bits & 0x7fu) << 20) * 0x1p120f;
  return std::bit_cast<float>(((bits & 0x80u) << 24) | std::bit_cast<std::uint32_t>(magnitude));
}

// The descale of values whose largest finite magnitude is `amax`.
constexpr float e4m3_descale(float amax) {
  const float descale = amax / kE4m3Max;
  constexpr float kLeast = std::numeric_limits<float>::min();
  return amax == 0.0f ? 1.0f : (descale > kLeast ? descale : kLeast);
}

// The least power of two that is not below `value`, a normal number from FLT_MIN to 2^127.
constexpr float power_of_two_from(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x7fffffu) & 0x7f800000u);
}

// 2^(bits - 127), a subnormal float if bits is 0; 255 is NaN.
constexpr float e8m0_to_float(std::uint32_t bits) {
  if (bits == 0xffu) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : bits << 23);
}

}  // namespace tilewright
