// The 16-bit formats, every value of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/half.hpp"

namespace tilewright {
namespace {

constexpr int kValues = 1 << 16;

// A format by its definition: sign, exponent and mantissa as written in the bits.
double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = exponent ? mantissa + std::ldexp(1.0, mantissa_bits) : mantissa;
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

template <typename ToFloat, typename FromFloat>
void expect_every_value_survives(ToFloat to_float, FromFloat from_float, int exponent_bits,
                                 int mantissa_bits) {
  for (int i = 0; i < kValues; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = decode(bits, exponent_bits, mantissa_bits);
    const float value = to_float(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_TRUE(std::isnan(to_float(from_float(value)))) << i;
    } else {
      EXPECT_EQ(value, expected) << i;
      EXPECT_EQ(from_float(value), bits) << i;
    }
  }
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  expect_every_value_survives(bf16_to_float, float_to_bf16, 8, 7);
}

TEST(Half, EveryFp16SurvivesTheRoundTrip) {
  expect_every_value_survives(fp16_to_float, float_to_fp16, 5, 10);
}

// Between two neighbours: the midpoint goes to the even one, anything off it to the nearer.
template <typename ToFloat, typename FromFloat>
void expect_rounds_to_nearest_even(ToFloat to_float, FromFloat from_float, int last_finite) {
  for (int i = 0; i < last_finite; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const float middle = to_float(low) / 2 + to_float(high) / 2;
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(from_float(middle), i % 2 ? high : low) << i;
    EXPECT_EQ(from_float(std::nextafter(middle, 0.0f)), low) << i;
    EXPECT_EQ(from_float(std::nextafter(middle, infinity)), high) << i;
  }
}

TEST(Half, Bf16RoundsToNearestEven) {
  expect_rounds_to_nearest_even(bf16_to_float, float_to_bf16, 0x7f7f);
}

TEST(Half, Fp16RoundsToNearestEven) {
  expect_rounds_to_nearest_even(fp16_to_float, float_to_fp16, 0x7bff);
}

TEST(Half, BeyondTheLargestIsInfinity) {
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace tilewright
