// Rotating and quantising on the CPU: the oracle's bytes, and what the rotation is.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/block_scale.hpp"
#include "common/random_signs.hpp"
#include "problems/rotate_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class RotateQuantizeCpu : public testing::TestWithParam<DType> {};

TEST_P(RotateQuantizeCpu, WritesTheOraclesBytes) {
  Ran ran;
  for (const RotateProblem& problem : rotate_problems(GetParam())) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    RotateHostSet result = make_tensors(problem);
    rotate_quantize(result.views(), options_of(problem));
    expect_right(problem, result);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RotateQuantizeCpu,
                         testing::Values(DType::fp32, DType::fp16, DType::bf16),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST(RotateQuantize, TakesEveryPowerOfTwo) {
  for (const std::int64_t head_dim : {2, 4, 8, 16, 32}) {
    const RotateProblem problem{.head_dim = head_dim};
    RotateHostSet result = make_tensors(problem);
    rotate_quantize(result.views(), options_of(problem));
    expect_right(problem, result);
  }
}

TEST(RotateQuantize, TakesAnyHeadDimWithoutARotation) {
  const RotateProblem problem{.head_dim = 37, .rotary_dims = 34, .seed = std::nullopt};
  RotateHostSet result = make_tensors(problem);
  rotate_quantize(result.views(), options_of(problem));
  expect_right(problem, result);
}

// SplitMix64's first outputs from the state 0, as its authors publish them.
TEST(RotateQuantize, SignsAreBitsOfSplitMix64) {
  EXPECT_EQ(split_mix_64(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(split_mix_64(0, 1), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(split_mix_64(0, 2), 0x06c45d188009454fu);
  EXPECT_EQ(negative_dims_of(0).words[0] & 7u, 1u);
}

// The values of a row of e4m3 bytes.
std::vector<double> values_of(const HostTensor& row, double descale) {
  std::vector<double> values;
  for (std::size_t i = 0; i < row.bytes(); ++i) {
    values.push_back(descale * e4m3_to_float(static_cast<std::uint8_t>(row.data()[i])));
  }
  return values;
}

// One dim of 1 becomes the column of the matrix: magnitudes of 1 / sqrt(D), and the signs of the
// dim and of its Walsh function.
TEST(RotateQuantize, RotatesByTheHadamardMatrix) {
  constexpr std::int64_t kDim = 64;
  constexpr std::uint64_t kSeed = 77;
  const NegativeDims negative = negative_dims_of(kSeed);
  for (const std::int64_t dim : {0, 1, 7, 32, 63}) {
    HostTensor x(DType::fp32, {1, 1, 1, kDim});
    HostTensor out(DType::e4m3, {1, 1, 1, kDim});
    HostTensor descale(DType::fp32, {1, 1, 1});
    reference::store(x.view(), dim, 1.0);
    rotate_quantize({.x = x.view(), .out = out.view(), .descale = descale.view()}, {.seed = kSeed});
    const float scale = reinterpret_cast<const float*>(descale.data())[0];
    EXPECT_EQ(scale, 0.125f / 448.0f);
    const std::vector<double> values = values_of(out, scale);
    const double sign = (negative.words[dim / 32] >> dim % 32 & 1u) != 0 ? -1 : 1;
    for (unsigned d = 0; d < kDim; ++d) {
      const double walsh = std::popcount(d & static_cast<unsigned>(dim)) % 2 == 0 ? 1 : -1;
      EXPECT_EQ(values[d], sign * walsh * 448.0 * scale) << dim << ", " << d;
    }
  }
}

TEST(RotateQuantize, KeepsScores) {
  constexpr std::int64_t kDim = 128;
  constexpr double kRounding = 0.04;  // two roundings to three bits, of random sign
  HostTensor q(DType::fp32, {1, 1, 1, kDim});
  HostTensor k = q;
  reference::fill_normal(q.view(), 1);
  reference::fill_normal(k.view(), 2);
  const auto rotated = [&](const HostTensor& x) {
    HostTensor out(DType::e4m3, {1, 1, 1, kDim});
    HostTensor descale(DType::fp32, {1, 1, 1});
    rotate_quantize({.x = x.view(), .out = out.view(), .descale = descale.view()}, {.seed = 9});
    return values_of(out, reference::load(descale.view(), 0));
  };
  const std::vector<double> a = rotated(q);
  const std::vector<double> b = rotated(k);
  double score = 0;
  double exact = 0;
  for (std::int64_t d = 0; d < kDim; ++d) {
    score += a[static_cast<std::size_t>(d)] * b[static_cast<std::size_t>(d)];
    exact += reference::load(q.view(), d) * reference::load(k.view(), d);
  }
  EXPECT_NEAR(score, exact, kRounding * std::sqrt(double{kDim}));
}

// The bytes of a row without a rotation, and its descale.
TEST(RotateQuantize, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::array<float, 8> row = {kNaN,   -kNaN,   kInfinity, -kInfinity,
                                    448.0f, -224.0f, -0.0f,     1e-9f};
  HostTensor x(DType::fp32, {1, 1, 1, 8});
  std::memcpy(x.data(), row.data(), x.bytes());
  HostTensor out(DType::e4m3, {1, 1, 1, 8});
  HostTensor descale(DType::fp32, {1, 1, 1});
  rotate_quantize({.x = x.view(), .out = out.view(), .descale = descale.view()});
  EXPECT_EQ(reference::load(descale.view(), 0), 1.0);
  constexpr std::array<std::uint8_t, 8> kBytes = {0x7f, 0x7f, 0x7e, 0xfe, 0x7e, 0xf6, 0x80, 0x00};
  EXPECT_EQ(std::memcmp(out.data(), kBytes.data(), kBytes.size()), 0);
}

// Rotated zeros have no sign, whatever signs there were.
TEST(RotateQuantize, RotatedZeros) {
  constexpr std::int64_t kDim = 64;
  HostTensor x(DType::fp32, {1, 2, 1, kDim});
  for (std::int64_t d = 0; d < kDim; ++d) {
    reference::store(x.view(), d, -0.0);  // the second row has zeros
  }
  HostTensor out(DType::e4m3, {1, 2, 1, kDim});
  HostTensor descale(DType::fp32, {1, 1, 1});
  std::memset(out.data(), 0xff, out.bytes());
  rotate_quantize({.x = x.view(), .out = out.view(), .descale = descale.view()}, {.seed = 3});
  for (std::size_t i = 0; i < out.bytes(); ++i) {
    EXPECT_EQ(std::to_integer<int>(out.data()[i]), 0) << i;
  }
}

TEST(RotateQuantize, TheLeastDescaleIsNormal) {
  HostTensor x(DType::fp32, {1, 1, 1, 8});
  reference::store(x.view(), 0, 1e-40);
  HostTensor out(DType::e4m3, {1, 1, 1, 8});
  HostTensor descale(DType::fp32, {1, 1, 1});
  rotate_quantize({.x = x.view(), .out = out.view(), .descale = descale.view()});
  EXPECT_EQ(reference::load(descale.view(), 0), double{std::numeric_limits<float>::min()});
  EXPECT_EQ(std::to_integer<int>(out.data()[1]), 0);
}

// Those of transposed rows are powers of two, and no less than others would be.
TEST(RotateQuantize, DescalesOfTransposedRows) {
  const auto descale_of = [](double amax) {
    HostTensor x(DType::fp32, {1, 1, 1, 8});
    reference::store(x.view(), 3, -amax);
    HostTensor out(DType::e4m3, {1, 1, 8, 16});
    HostTensor descale(DType::fp32, {1, 1, 1});
    rotate_quantize({.x = x.view(), .out_transposed = out.view(), .descale = descale.view()});
    const double value = reference::load(descale.view(), 0);
    EXPECT_EQ(value * e4m3_to_float(std::to_integer<std::uint32_t>(out.data()[3 * 16])), -amax);
    return value;
  };
  EXPECT_EQ(descale_of(448), 1.0);
  EXPECT_EQ(descale_of(256), 1.0);
  EXPECT_EQ(descale_of(224), 0.5);
  EXPECT_EQ(descale_of(512), 2.0);
  EXPECT_EQ(descale_of(0), 1.0);
  EXPECT_EQ(descale_of(0x1p-130), double{std::numeric_limits<float>::min()});
}

TEST(RotateQuantize, RowsOfNoPositionAreFoundOnTheCpu) {
  const RotateProblem problem{.rotary_dims = 8, .has_positions = true};
  RotateHostSet set = make_tensors(problem);
  reference::store(set.positions->view(), 3, 300);
  EXPECT_THROW(rotate_quantize(set.views(), options_of(problem)), Error);
}

}  // namespace
}  // namespace tilewright::test
