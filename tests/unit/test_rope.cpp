// RoPE on the CPU: the oracle's bytes, an angle written out, and the frequencies of DeepSeek-V4.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "bad_call.hpp"
#include "problems/rope_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class RopeCpu : public testing::TestWithParam<DType> {};

TEST_P(RopeCpu, WritesTheOraclesBytes) {
  Ran ran;
  for (const RotationProblem& problem : rotation_problems(GetParam())) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    RotationHostSet result = make_tensors(problem);
    rope(result.views(problem), options_of(problem));
    expect_right(problem, result);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RopeCpu, testing::Values(DType::fp32, DType::fp16, DType::bf16),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST(Rope, TakesAnyHeadDim) {
  for (const bool interleaved : {false, true}) {
    const RotationProblem problem{.head_dim = 37, .rotary_dims = 22, .interleaved = interleaved};
    RotationHostSet result = make_tensors(problem);
    rope(result.views(problem), options_of(problem));
    expect_right(problem, result);
  }
}

// The last two of three dims, as a complex number, are multiplied by that of the angle.
TEST(Rope, RotatesByTheAngleOfThePosition) {
  constexpr double kAngle = 0.3;
  HostTensor x(DType::fp32, {1, 3});
  HostTensor out(DType::fp32, {1, 3});
  HostTensor cos(DType::fp32, {6, 1});
  HostTensor sin(DType::fp32, {6, 1});
  HostTensor position(DType::int64, {1});
  const std::array values = {7.0f, 2.0f, -1.0f};
  std::memcpy(x.data(), values.data(), sizeof(values));
  for (int i = 0; i < 6; ++i) {
    reference::store(cos.view(), i, std::cos(kAngle * i));
    reference::store(sin.view(), i, std::sin(kAngle * i));
  }
  reference::store(position.view(), 0, 5);
  const RopeTensors tensors{.x = x.view(),
                            .out = out.view(),
                            .rotary_cos = cos.view(),
                            .rotary_sin = sin.view(),
                            .positions = position.view()};
  for (const double turn : {1.0, -1.0}) {
    rope(tensors, {.inverse = turn < 0});
    const double angle = turn * 5 * kAngle;
    EXPECT_EQ(reference::load(out.view(), 0), 7.0);
    EXPECT_NEAR(reference::load(out.view(), 1), 2 * std::cos(angle) + std::sin(angle), 1e-6);
    EXPECT_NEAR(reference::load(out.view(), 2), 2 * std::sin(angle) - std::cos(angle), 1e-6);
  }
}

constexpr RopeYarn kDeepSeekYarn{};
constexpr RopeScaling kWindowLayers{};
constexpr RopeScaling kCompressedLayers{.theta = 160000, .yarn = kDeepSeekYarn};

TEST(RopeFrequencies, WithoutYarnArePowersOfTheta) {
  const auto frequencies = rope_frequencies(kWindowLayers);
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_EQ(frequencies[16], 0.01f);
  EXPECT_FLOAT_EQ(frequencies[31], static_cast<float>(std::pow(10000.0, -31.0 / 32)));
}

// YaRN keeps the dims that turn at least 32 times in 65536 positions, and slows those down that
// turn at most once.
TEST(RopeFrequencies, WithYarnAreSlowedDownWhereTheyTurnSeldom) {
  const auto frequencies = rope_frequencies(kCompressedLayers);
  const auto plain = rope_frequencies({.theta = 160000});
  for (std::size_t i = 0; i < 32; ++i) {
    const double turns = plain[i] * 65536 / (2 * std::acos(-1.0));
    EXPECT_LE(frequencies[i], plain[i]) << i;
    EXPECT_GE(frequencies[i], plain[i] / 16 * (1 - 1e-6)) << i;
    if (turns > 45) {
      EXPECT_EQ(frequencies[i], plain[i]) << i;
    }
    if (turns < 0.7) {
      EXPECT_FLOAT_EQ(frequencies[i], plain[i] / 16) << i;
    }
  }
  EXPECT_LT(frequencies[20], plain[20]);
  EXPECT_GT(frequencies[20], plain[20] / 16);
}

// The angle is a product in FP32.
TEST(RopeTables, HaveTheCosinesAndSinesOfFp32Angles) {
  const auto frequencies = rope_frequencies(kCompressedLayers);
  constexpr std::int64_t kPositions = 70000;
  HostTensor cos(DType::fp32, {kPositions, 32}, {33, 1});
  HostTensor sin(DType::fp32, {kPositions, 32});
  rope_tables(kCompressedLayers, cos.view(), sin.view());
  for (const std::int64_t position : {0, 1, 4097, 69999}) {
    for (std::int64_t i = 0; i < 32; ++i) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<std::size_t>(i)];
      EXPECT_EQ(reference::load(cos.view(), position * 33 + i),
                static_cast<float>(std::cos(static_cast<double>(angle))));
      EXPECT_EQ(reference::load(sin.view(), position * 32 + i),
                static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

// A scaling with its tables, for a case to spoil.
struct TablesCall {
  TablesCall() {
    poison(cos);
    poison(sin);
  }
  TablesCall(const TablesCall&) = delete;

  bool outputs_untouched() const { return is_poisoned(cos) && is_poisoned(sin); }

  HostTensor cos{DType::fp32, {8, 32}};
  HostTensor sin{DType::fp32, {8, 32}};
  TensorView cos_view = cos.view();
  TensorView sin_view = sin.view();
  RopeScaling scaling = kCompressedLayers;
};

using BadTables = BadCallOf<TablesCall>;

TEST(RopeTables, OfWrongArgumentsAreRefused) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const BadTables& bad : {
           BadTables{"theta", [](auto& c) { c.scaling.theta = 1; }, "theta", {"must be finite"}},
           BadTables{"nan", [](auto& c) { c.scaling.theta = kNaN; }, "theta", {"above 1"}},
           BadTables{"odd", [](auto& c) { c.scaling.dims = 63; }, "dims", {"is 63", "even"}},
           BadTables{"no_dims", [](auto& c) { c.scaling.dims = 0; }, "dims", {"is 0"}},
           BadTables{"factor", [](auto& c) { c.scaling.yarn->factor = 0.5; }, "factor", {"is 0.5"}},
           BadTables{"original",
                     [](auto& c) { c.scaling.yarn->original_positions = 0; },
                     "original_positions",
                     {"is 0, must be at least 1"}},
           BadTables{"slow", [](auto& c) { c.scaling.yarn->beta_slow = 0; }, "beta_slow", {"is 0"}},
           BadTables{"fast",
                     [](auto& c) { c.scaling.yarn->beta_fast = 0.5; },
                     "beta_fast",
                     {"at least beta_slow"}},
           BadTables{"cos_dtype",
                     [](auto& c) { c.cos_view.dtype = DType::bf16; },
                     "cos",
                     {"bf16, must be fp32"}},
           BadTables{"cos_device",
                     [](auto& c) {
                       c.cos_view.device = {DeviceKind::cuda, 0};
                     },
                     "cos",
                     {"must be on cpu"}},
           BadTables{"cos_pairs",
                     [](auto& c) { c.scaling.dims = 128; },
                     "cos",
                     {"pairs is 32, must equal half of dims, 64"}},
           BadTables{"sin_positions",
                     [](auto& c) { c.sin_view.shape[0] = 7; },
                     "sin",
                     {"positions is 7, must equal cos' 8"}},
           BadTables{"one_table", [](auto& c) { c.cos_view = c.sin_view; }, "cos", {"sin"}},
       }) {
    TablesCall call;
    bad.spoil(call);
    expect_throws(bad, call, [&] { rope_tables(call.scaling, call.cos_view, call.sin_view); });
  }
}

}  // namespace
}  // namespace tilewright::test
