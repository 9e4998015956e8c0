// Division by a number known beforehand: many divisors, around the edges of their quotients.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "common/divisor.hpp"

namespace tilewright {
namespace {

constexpr int kMax = std::numeric_limits<int>::max();

// Around the multiples of `value`, where a quotient changes, and at the end of the range.
void expect_quotients(int value, std::mt19937& random) {
  const Divisor divisor(value);
  EXPECT_EQ(divisor, value);
  const auto expect_at = [&](int dividend) {
    EXPECT_EQ(dividend / divisor, dividend / value) << dividend << " / " << value;
  };
  expect_at(0);
  expect_at(kMax);
  const int multiples = kMax / value;
  for (int i = 0; i < 20; ++i) {
    const int multiple = std::uniform_int_distribution<int>(0, multiples)(random) * value;
    expect_at(multiple);
    expect_at(multiple + std::min(value - 1, kMax - multiple));
  }
}

TEST(Divisor, DividesAsTheProcessorDoes) {
  std::mt19937 random(3);
  for (int value = 1; value <= 5000; ++value) {
    expect_quotients(value, random);
  }
  for (int bit = 2; bit < 31; ++bit) {
    for (const int offset : {-1, 0, 1}) {
      expect_quotients((1 << bit) + offset, random);
    }
  }
  for (int i = 0; i < 2000; ++i) {
    expect_quotients(std::uniform_int_distribution<int>(1, kMax)(random), random);
  }
  expect_quotients(kMax, random);
}

}  // namespace
}  // namespace tilewright
