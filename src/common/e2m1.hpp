// E2M1, the 4-bit floating-point format: a sign, two bits of exponent, one of mantissa. Its codes
// 0 ... 7 stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. There is no infinity and no NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tilewright {

inline constexpr float kE2m1Max = 6.0f;
inline constexpr std::uint32_t kE2m1Sign = 8;

// ---- The code of a magnitude y >= 0 in FP32, rounded to nearest, ties to the even code
//
// The values of codes go up in steps of 1/2 up to 2, of 1 up to 4, and of 2 beyond: the code is the
// least of 2y, y + 2, y/2 + 4 and 7, rounded. Adding 1.5 * 2^23 rounds each to an integer in its
// low bits. As all are positive, they compare like integers, with NaN above all numbers. The code
// is in the low byte of what the functions return; the other bytes mean nothing.
inline constexpr float kE2m1Round = 0x1.8p23f;

// The lesser of 2y and y + 2, and y/2 + 4.
constexpr std::uint32_t e2m1_fine(float y) {
  return std::min(std::bit_cast<std::uint32_t>(y * 2.0f + kE2m1Round),
                  std::bit_cast<std::uint32_t>(y + (kE2m1Round + 2.0f)));
}
constexpr std::uint32_t e2m1_coarse(float y) {
  return std::bit_cast<std::uint32_t>(y * 0.5f + (kE2m1Round + 4.0f));
}

// Of any y: it is 7 above 5, and for NaN.
constexpr std::uint32_t e2m1_magnitude(float y) {
  return std::min(e2m1_fine(y),
                  std::min(e2m1_coarse(y), std::bit_cast<std::uint32_t>(kE2m1Round + 7.0f)));
}

// Of y < 7.
constexpr std::uint32_t e2m1_magnitude_below_7(float y) {
  return std::min(e2m1_fine(y), e2m1_coarse(y));
}

// Keeps the sign of the value, also that of -0 and NaN.
constexpr std::uint8_t float_to_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = e2m1_magnitude(std::bit_cast<float>(bits & 0x7fffffffu));
  return static_cast<std::uint8_t>((magnitude & 7u) | (bits >> 31 << 3));
}

// Puts a code's bits where a float has its exponent and mantissa; the exponent is then 126 too low.
constexpr float e2m1_to_float(std::uint32_t code) {
  const float magnitude = std::bit_cast<float>((code & 7u) << 22) * 0x1p126f;
  const std::uint32_t sign = (code & kE2m1Sign) << 28;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

}  // namespace tilewright
