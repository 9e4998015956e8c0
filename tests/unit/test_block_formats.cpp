// E2M1, E4M3 and E8M0, against tables of their values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "common/block_scale.hpp"
#include "common/e2m1.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(BlockFormats, EveryCodeHasItsValue) {
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float expected = code < 8 ? kValues[code] : -kValues[code - 8];
    EXPECT_EQ(e2m1_to_float(code), expected) << code;
    EXPECT_EQ(std::signbit(e2m1_to_float(code)), code >= 8) << code;
    EXPECT_EQ(reference::e2m1_value(code), expected) << code;
    EXPECT_EQ(float_to_e2m1(expected), code) << code;
  }
}

TEST(BlockFormats, E2m1TiesGoToTheEvenCode) {
  constexpr std::pair<float, int> kTies[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                             {2.5f, 4},  {3.5f, 6},  {5.0f, 6}};
  for (const auto& [tie, code] : kTies) {
    EXPECT_EQ(float_to_e2m1(tie), code) << tie;
    EXPECT_EQ(float_to_e2m1(-tie), code + 8) << tie;
    for (const float neighbour : {std::nextafter(tie, 0.0f), std::nextafter(tie, 10.0f)}) {
      EXPECT_EQ(float_to_e2m1(neighbour), reference::round_to_e2m1(neighbour)) << neighbour;
    }
  }
}

TEST(BlockFormats, E2m1BelowSevenNeedsNoBound) {
  for (float y = 0.0f; y < 7.0f; y += 0x1p-10f) {
    ASSERT_EQ(e2m1_magnitude_below_7(y) & 0xffu, e2m1_magnitude(y) & 0xffu) << y;
  }
  const float last = std::nextafter(7.0f, 0.0f);
  EXPECT_EQ(e2m1_magnitude_below_7(last) & 0xffu, e2m1_magnitude(last) & 0xffu);
}

TEST(BlockFormats, E2m1SaturatesAndNaNIsTheLargestCode) {
  for (const float value :
       {6.0f, 7.0f, 1e30f, std::numeric_limits<float>::max(), kInfinity, kNaN}) {
    EXPECT_EQ(float_to_e2m1(value), 7) << value;
    EXPECT_EQ(float_to_e2m1(std::copysign(value, -1.0f)), 15) << value;
  }
}

// Exponents and the bits that rounding looks at one by one, the others at random.
template <typename Check>
void for_many_floats(Check check) {
  std::mt19937 random(1);
  const auto any = [&] { return static_cast<std::uint32_t>(random() & 0xffffu); };
  for (std::uint32_t high = 0; high < 1u << 16; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0xffffu, any(), any()}) {
      check(std::bit_cast<float>(high << 16 | low));
    }
  }
}

TEST(BlockFormats, E2m1RoundsLikeTheSearchForTheNearest) {
  for_many_floats([](float value) {
    ASSERT_EQ(float_to_e2m1(value), reference::round_to_e2m1(value)) << value;
  });
}

TEST(BlockFormats, E4m3RoundsLikeTheSearchForTheNearest) {
  for_many_floats([](float value) {
    ASSERT_EQ(float_to_e4m3(value), reference::round_to_e4m3(value)) << value;
  });
}

TEST(BlockFormats, EveryE4m3HasItsValueAndSurvivesTheRoundTrip) {
  for (int bits = 0; bits < 256; ++bits) {
    const double expected = reference::scale_value(DType::e4m3, bits);
    const float value = e4m3_to_float(bits);
    if (std::isnan(expected)) {
      EXPECT_EQ(bits & 127, 127);
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, expected) << bits;
      EXPECT_EQ(float_to_e4m3(value), bits) << bits;
    }
  }
  EXPECT_EQ(e4m3_to_float(1), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(float_to_e4m3(kInfinity), 0x7e);
  EXPECT_EQ(float_to_e4m3(kNaN), 0x7f);
}

TEST(BlockFormats, EveryE8m0IsAPowerOfTwo) {
  for (int bits = 0; bits < 255; ++bits) {
    EXPECT_EQ(e8m0_to_float(bits), std::ldexp(1.0, bits - 127)) << bits;
    EXPECT_EQ(reference::scale_value(DType::e8m0, bits), std::ldexp(1.0, bits - 127)) << bits;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

}  // namespace
}  // namespace tilewright
