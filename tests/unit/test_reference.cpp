// The oracle on problems small enough to work out by hand, and the tools around it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

HostTensor tensor_of(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  HostTensor tensor(DType::fp32, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(tensor.view(), static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

AttentionResult attend(const HostTensor& q, const HostTensor& k, const HostTensor& v,
                       const AttentionOptions& options = {}, Rounding rounding = Rounding::exact) {
  return attention({.q = q.view(), .k = k.view(), .v = v.view(), .o = {}}, options, rounding);
}

TEST(Oracle, OneKeyGivesItsValue) {
  const auto q = tensor_of({1, 1, 1, 2}, {3, -1});
  const auto k = tensor_of({1, 1, 1, 2}, {2, 4});
  const auto v = tensor_of({1, 1, 1, 2}, {5, 7});
  const AttentionResult result = attend(q, k, v, {.scale = 0.5f});
  EXPECT_THAT(result.o, ElementsAre(5, 7));
  EXPECT_THAT(result.lse, ElementsAre(1));  // 0.5 * (3 * 2 - 1 * 4)
}

TEST(Oracle, TwoKeysByHand) {
  const auto q = tensor_of({1, 1, 1, 1}, {1});
  const auto k = tensor_of({1, 2, 1, 1}, {0, std::log(3.0)});
  const auto v = tensor_of({1, 2, 1, 1}, {4, 8});
  const AttentionResult result = attend(q, k, v, {.scale = 1.0f});
  EXPECT_NEAR(result.o[0], 0.25 * 4 + 0.75 * 8, 1e-6);  // weights 1 : 3
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-6);
}

TEST(Oracle, DefaultScaleIsOneOverTheRootOfTheHeadDim) {
  const auto q = tensor_of({1, 1, 1, 4}, {1, 1, 1, 1});
  const auto k = tensor_of({1, 1, 1, 4}, {1, 1, 1, 1});
  EXPECT_DOUBLE_EQ(attend(q, k, k).lse[0], 2.0);
}

TEST(Oracle, ScaleZeroAverages) {
  const auto q = tensor_of({1, 1, 1, 1}, {9});
  const auto k = tensor_of({1, 4, 1, 1}, {1, 2, 3, 4});
  const AttentionResult result = attend(q, k, k, {.scale = 0.0f});
  EXPECT_DOUBLE_EQ(result.o[0], 2.5);
  EXPECT_DOUBLE_EQ(result.lse[0], std::log(4.0));
}

TEST(Oracle, CausalIsAlignedToTheBottomRight) {
  const auto q = tensor_of({1, 2, 1, 1}, {0, 0});
  const auto k = tensor_of({1, 3, 1, 1}, {0, 0, 0});
  const auto v = tensor_of({1, 3, 1, 1}, {3, 6, 30});
  EXPECT_THAT(attend(q, k, v, {.causal = true}).o, ElementsAre(4.5, 13));  // 2 keys, then 3
}

TEST(Oracle, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  const auto q = tensor_of({1, 3, 1, 1}, {1, 1, 1});
  const auto k = tensor_of({1, 1, 1, 1}, {2});
  const auto v = tensor_of({1, 1, 1, 1}, {5});
  const AttentionResult result = attend(q, k, v, {.causal = true});
  EXPECT_THAT(result.o, ElementsAre(0, 0, 5));
  EXPECT_THAT(result.lse, ElementsAre(-kInfinity, -kInfinity, 2));
}

TEST(Oracle, AWindowIsCountedFromTheDiagonal) {
  const auto q = tensor_of({1, 2, 1, 1}, {0, 0});
  const auto k = tensor_of({1, 5, 1, 1}, {0, 0, 0, 0, 0});
  const auto v = tensor_of({1, 5, 1, 1}, {1, 10, 100, 1000, 10000});
  // The queries stand at keys 3 and 4.
  EXPECT_THAT(attend(q, k, v, {.window = {.left = 1}}).o, ElementsAre(11100 / 3.0, 5500));
  EXPECT_THAT(attend(q, k, v, {.window = {.left = 1, .right = 0}}).o, ElementsAre(550, 5500));
  EXPECT_THAT(attend(q, k, v, {.window = {.right = 0}}).o, ElementsAre(1111 / 4.0, 11111 / 5.0));
}

TEST(Oracle, AWindowWiderThanAllIsAsWideAsAll) {
  constexpr std::int64_t kWidest = std::numeric_limits<std::int64_t>::max();
  const Window widest{.left = kWidest, .right = kWidest};
  const auto q = tensor_of({1, 3, 1, 1}, {1, 2, 3});
  for (const std::vector<double>& keys : {std::vector{5.0}, {5, 6, 7, 8}}) {
    const auto k = tensor_of({1, static_cast<std::int64_t>(keys.size()), 1, 1}, keys);
    const AttentionResult expected = attend(q, k, k);
    const AttentionResult result = attend(q, k, k, {.window = widest});
    EXPECT_EQ(result.o, expected.o);
    EXPECT_EQ(result.lse, expected.lse);
  }
}

TEST(Oracle, TheCapBendsScores) {
  const auto q = tensor_of({1, 1, 1, 1}, {1});
  const auto k = tensor_of({1, 2, 1, 1}, {0, 4});
  const auto v = tensor_of({1, 2, 1, 1}, {0, 1});
  const double weight = std::exp(2 * std::tanh(4.0 / 2));
  const AttentionResult result = attend(q, k, v, {.scale = 1.0f, .softcap = 2.0f});
  EXPECT_NEAR(result.o[0], weight / (1 + weight), 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(1 + weight), 1e-12);
}

TEST(Oracle, ASinkTakesItsShareAndGivesNothing) {
  const auto q = tensor_of({1, 2, 2, 1}, {0, 0, 0, 0});
  const auto k = tensor_of({1, 1, 1, 1}, {0});
  const auto v = tensor_of({1, 1, 1, 1}, {8});
  const auto sinks = tensor_of({2}, {0, std::log(3.0)});
  const AttentionResult result =
      attention({.q = q.view(), .k = k.view(), .v = v.view(), .o = {}, .sinks = sinks.view()},
                {.causal = true});
  EXPECT_THAT(result.o, Pointwise(DoubleNear(1e-6), {0.0, 0.0, 4.0, 2.0}));
  // The first query sees no key: what is left is its sink.
  EXPECT_THAT(result.lse,
              Pointwise(DoubleNear(1e-6), {0.0, std::log(2.0), std::log(3.0), std::log(4.0)}));
}

TEST(Oracle, QueryHeadsShareKeyValueHeadsInGroups) {
  const auto q = tensor_of({1, 1, 4, 1}, {1, 1, 1, 1});
  const auto k = tensor_of({1, 1, 2, 1}, {1, 1});
  const auto v = tensor_of({1, 1, 2, 1}, {10, 20});
  EXPECT_THAT(attend(q, k, v).o, ElementsAre(10, 10, 20, 20));
}

TEST(Oracle, RoundedReferenceIsNearAndNotEqual) {
  HostTensor q(DType::bf16, {1, 9, 1, 8});
  HostTensor k(DType::bf16, {1, 33, 1, 8});
  fill_normal(q.view(), 1);
  fill_normal(k.view(), 2);
  const auto exact = attend(q, k, k).o;
  const auto rounded = attend(q, k, k, {}, Rounding::bf16).o;
  EXPECT_THAT(rounded, Pointwise(DoubleNear(0.02), exact));
  EXPECT_NE(rounded, exact);
}

TEST(ParallelFor, ThrowsWhatABodyThrows) {
  std::atomic<int> calls = 0;
  const auto body = [&](std::int64_t i) {
    ++calls;
    if (i == 70) {
      throw std::bad_alloc();
    }
  };
  EXPECT_THROW(parallel_for(100, body), std::bad_alloc);
  EXPECT_EQ(calls, 100);
}

TEST(HostTensor, NormalValuesDependOnSeedAndIndexAlone) {
  HostTensor dense(DType::fp32, {2, 3, 4});
  HostTensor strided(DType::fp32, {2, 3, 4}, {40, 4, 1});
  fill_normal(dense.view(), 7);
  fill_normal(strided.view(), 7);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 12; ++j) {
      EXPECT_EQ(load(dense.view(), 12 * i + j), load(strided.view(), 40 * i + j));
    }
  }
}

TEST(HostTensor, NormalValuesAreNormal) {
  HostTensor tensor(DType::fp32, {100000});
  fill_normal(tensor.view(), 3, 2.0);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = load(tensor.view(), i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.03);
  EXPECT_NEAR(squares / 1e5, 4.0, 0.1);
}

TEST(Compare, MeasuresErrorsAndSpecials) {
  const auto tensor = tensor_of({4}, {3, 4.5, -kInfinity, 0});
  const ErrorNorms norms = compare(tensor.view(), {3, 4, -kInfinity, 0});
  EXPECT_DOUBLE_EQ(norms.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(norms.rel_fro, 0.1);
  EXPECT_TRUE(norms.same_specials);
  EXPECT_FALSE(compare(tensor.view(), {3, 4, kInfinity, 0}).same_specials);
  EXPECT_FALSE(compare(tensor.view(), {3, std::nan(""), -kInfinity, 0}).same_specials);
}

}  // namespace
}  // namespace tilewright::reference
