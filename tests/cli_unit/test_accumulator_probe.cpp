// What the probe concludes of accumulators whose width and rounding are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/accumulator_probe.hpp"

namespace tilewright::cli {
namespace {

constexpr int kFp32Bits = 24;

struct RoundingCase {
  Rounding rounding;
  double (*round)(double);
};

const std::vector<RoundingCase> kRoundings = {
    {Rounding::toward_zero, [](double value) { return std::trunc(value); }},
    {Rounding::down, [](double value) { return std::floor(value); }},
    {Rounding::up, [](double value) { return std::ceil(value); }},
    {Rounding::nearest_even, [](double value) { return std::nearbyint(value); }},
    {Rounding::nearest_away, [](double value) { return std::round(value); }}};

// An accumulator as tensor cores are said to have it: `group` products at a time and what it holds
// are aligned to the largest of them, have `bits` bits, and are added exactly.
struct Model {
  int group = 32;
  int bits = 14;
  double (*round)(double) = kRoundings[0].round;
  bool rounds_each = true;         // or else their sum
  int bits_of_result = kFp32Bits;  // to which a sum is cut

  double add(const std::vector<double>& summands) const {
    double largest = 0;
    for (const double summand : summands) {
      largest = std::max(largest, std::abs(summand));
    }
    if (largest == 0) {
      return 0;
    }
    const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - bits);
    double sum = 0;
    for (const double summand : summands) {
      sum += rounds_each ? round(summand / unit) : summand / unit;
    }
    sum = (rounds_each ? sum : round(sum)) * unit;
    if (sum == 0) {
      return 0;
    }
    const double last_place = std::ldexp(1.0, std::ilogb(sum) + 1 - bits_of_result);
    return std::trunc(sum / last_place) * last_place;
  }

  std::vector<float> operator()(const std::vector<Summands>& sums) const {
    std::vector<float> results;
    for (const Summands& sum : sums) {
      double c = sum.start;
      for (std::size_t i = 0; i < sum.x.size();) {
        std::vector<double> summands = {c};
        for (int j = 0; j < group; ++j, ++i) {
          summands.push_back(static_cast<double>(sum.x[i]) * sum.y[i]);
        }
        c = add(summands);
      }
      results.push_back(static_cast<float>(c));
    }
    return results;
  }
};

void expect_width(const AccumulatorFindings& found, int bits) {
  EXPECT_EQ(found.bits, bits);
  EXPECT_EQ(found.most_bits, bits);
  EXPECT_EQ(found.bits_beside_c, bits);
  EXPECT_EQ(found.bits_of_c, bits);
}

TEST(AccumulatorProbe, FindsWidthAndRounding) {
  for (const int bits : {13, 14, 22, 24}) {
    for (const RoundingCase& c : kRoundings) {
      for (const int instructions : {1, 2, 4}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, " + std::string(name(c.rounding)) + ", " +
                     std::to_string(instructions) + " instructions");
        const Model model{.bits = bits, .round = c.round};
        const AccumulatorFindings found = probe_accumulator(32, instructions, model);
        expect_width(found, bits);
        EXPECT_EQ(found.rounding, c.rounding);
        EXPECT_EQ(found.rounds_each_product, true);
      }
    }
  }
}

TEST(AccumulatorProbe, FindsSumsThatAreCut) {
  // Cut toward zero, a sum of eight large products and a small one keeps the small one's bits only
  // if the sum is not cut to as many bits again.
  const Model wide{.bits = 14};
  EXPECT_EQ(probe_accumulator(32, 1, wide).bits_of_sum, 14 + 3);
  EXPECT_EQ(probe_accumulator(32, 2, wide).bits_of_sum, 14);  // aligned to the sum
  const Model normalised{.bits = 14, .bits_of_result = 14};
  EXPECT_EQ(probe_accumulator(32, 1, normalised).bits_of_sum, 14);
}

TEST(AccumulatorProbe, TellsProductsFromTheirSum) {
  for (const RoundingCase& c : kRoundings) {
    const Model model{.bits = 14, .round = c.round, .rounds_each = false};
    EXPECT_EQ(probe_accumulator(32, 1, model).rounds_each_product, false) << name(c.rounding);
  }
}

TEST(AccumulatorProbe, FindsGroups) {
  for (const int group : {8, 16}) {
    const Model model{.group = group, .bits = 14};
    const AccumulatorFindings found = probe_accumulator(32, 1, model);
    EXPECT_EQ(found.bits, 14);
    EXPECT_EQ(found.most_bits, kMostBits) << "a small product in a group without large ones";
  }
}

TEST(AccumulatorProbe, TakesInstructionsOfSixteen) {
  const Model model{.group = 16, .bits = 25};
  expect_width(probe_accumulator(16, 1, model), 25);
}

TEST(AccumulatorProbe, SaysWhatItCannotTell) {
  const Model model{.bits = 40};
  const AccumulatorFindings found = probe_accumulator(32, 1, model);
  EXPECT_EQ(found.bits, kMostBits);
  EXPECT_EQ(found.rounding, Rounding::beyond_measurement);
  EXPECT_FALSE(found.rounds_each_product.has_value());
}

TEST(AccumulatorProbe, NamesNoRoundingThatItDoesNotKnow) {
  const Model model{.bits = 14, .round = [](double value) {
                      return value < 0 ? std::floor(value) : std::floor(value + 0.5);
                    }};
  EXPECT_EQ(probe_accumulator(32, 1, model).rounding, Rounding::none_of_these);
}

TEST(AccumulatorProbe, TakesFactorsThatE4m3Has) {
  const auto is_e4m3 = [](float factor) {
    const float magnitude = std::abs(factor);
    if (magnitude == 0) {
      return true;
    }
    const float significand = std::ldexp(magnitude, 3 - std::ilogb(magnitude));
    return magnitude >= 0x1p-6f && magnitude <= 448 && significand == std::trunc(significand);
  };
  int factors = 0;
  for (const int bits : {3, 14, 27}) {
    const Model of_width{.bits = bits};
    probe_accumulator(32, 1, [&](const std::vector<Summands>& sums) {
      for (const Summands& sum : sums) {
        for (const std::vector<float>& values : {sum.x, sum.y}) {
          EXPECT_TRUE(std::ranges::all_of(values, is_e4m3));
          factors += static_cast<int>(values.size());
        }
      }
      return of_width(sums);
    });
  }
  EXPECT_GT(factors, 0);
}

}  // namespace
}  // namespace tilewright::cli
