// Merging attention results on the CPU: against the float64 model, and against attention over all
// keys at once.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "problems/merge_problem.hpp"
#include "ran.hpp"
#include "reference/attention.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

MergeHostSet merged(const MergeProblem& problem) {
  MergeHostSet set = make_tensors(problem);
  merge_states(set.views());
  return set;
}

TEST(MergeStates, EqualsTheFloat64Model) {
  Ran ran;
  for (const MergeProblem& problem : merge_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    MergeHostSet result = merged(problem);
    expect_right(problem, result);
  }
}

TEST(MergeStates, TakesAnyHeadDim) {
  for (const std::int64_t head_dim : {1, 7, 65, 130}) {
    const MergeProblem problem{.parts = 3, .tokens = 9, .heads = 2, .head_dim = head_dim};
    MergeHostSet result = merged(problem);
    expect_right(problem, result);
  }
}

TEST(MergeStates, RepeatsAreEqualBitForBit) {
  const MergeProblem problem{.parts = 7, .tokens = 50, .heads = 4, .has_sinks = true};
  const MergeHostSet first = merged(problem);
  for (int i = 0; i < 5; ++i) {
    const MergeHostSet again = merged(problem);
    EXPECT_TRUE(same_bytes(first.out, again.out));
    EXPECT_TRUE(same_bytes(*first.lse_out, *again.lse_out));
  }
}

// One row of two parts, written out.
class TwoParts : public testing::Test {
 protected:
  void merge(std::array<double, 2> maxima, std::array<double, 2> values,
             std::optional<double> sink = std::nullopt) {
    HostTensor o(DType::fp32, {2, 1, 1, 1});
    HostTensor lse(DType::fp32, {2, 1, 1});
    HostTensor sinks(DType::fp32, {1});
    HostTensor out(DType::fp32, {1, 1, 1});
    HostTensor lse_out(DType::fp32, {1, 1});
    for (int part = 0; part < 2; ++part) {
      reference::store(o.view(), part, values[part]);
      reference::store(lse.view(), part, maxima[part]);
    }
    MergeStatesTensors tensors{
        .o = o.view(), .out = out.view(), .lse = lse.view(), .lse_out = lse_out.view()};
    if (sink) {
      reference::store(sinks.view(), 0, *sink);
      tensors.sinks = sinks.view();
    }
    merge_states(tensors);
    result = reference::load(out.view(), 0);
    result_lse = reference::load(lse_out.view(), 0);
  }

  double result = 0;
  double result_lse = 0;
};

TEST_F(TwoParts, OfWhichOneHasNoKeys) {
  merge({-kInfinity, 1.5}, {kNaN, 3});
  EXPECT_EQ(result, 3);
  EXPECT_EQ(result_lse, 1.5);
}

TEST_F(TwoParts, WithoutKeys) {
  merge({-kInfinity, -kInfinity}, {kNaN, kInfinity});
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, -kInfinity);
  merge({-kInfinity, -kInfinity}, {kNaN, kInfinity}, 0.25);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, 0.25);
  merge({-kInfinity, -kInfinity}, {kNaN, kInfinity}, -kInfinity);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, -kInfinity);
}

TEST_F(TwoParts, UnderInfiniteSinks) {
  merge({kInfinity, 1.5}, {0, 3});
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, kInfinity);
  merge({kInfinity, kInfinity}, {0, 0});
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, kInfinity);
  merge({kInfinity, kInfinity}, {2, 4});
  EXPECT_EQ(result, 3);
  merge({0.5, 1.5}, {2, 3}, kInfinity);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(result_lse, kInfinity);
}

TEST_F(TwoParts, WithNaN) {
  merge({kNaN, 1.5}, {2, 3});
  EXPECT_TRUE(std::isnan(result) && std::isnan(result_lse));
  merge({kNaN, kInfinity}, {2, 0});
  EXPECT_TRUE(std::isnan(result) && std::isnan(result_lse));
  merge({-kInfinity, kNaN}, {2, 0});
  EXPECT_TRUE(std::isnan(result) && std::isnan(result_lse));
  merge({0.5, 1.5}, {2, 3}, kNaN);
  EXPECT_TRUE(std::isnan(result) && std::isnan(result_lse));
  merge({0.5, 1.5}, {2, kNaN});
  EXPECT_TRUE(std::isnan(result));
  EXPECT_NEAR(result_lse, std::log(std::exp(0.5) + std::exp(1.5)), 1e-6);
}

// The view without its first dimension, at an index of that.
TensorView entry_of(TensorView view, std::int64_t index) {
  view.data = static_cast<std::byte*>(view.data) +
              index * view.stride[0] * static_cast<std::int64_t>(size_bytes(view.dtype));
  for (int i = 1; i < view.rank; ++i) {
    view.shape[i - 1] = view.shape[i];
    view.stride[i - 1] = view.stride[i];
  }
  --view.rank;
  return view;
}

// The rows [first, end) of a packed tensor.
TensorView rows_of(TensorView view, std::int64_t first, std::int64_t end) {
  view.data = static_cast<std::byte*>(view.data) +
              first * view.stride[0] * static_cast<std::int64_t>(size_bytes(view.dtype));
  view.shape[0] = end - first;
  return view;
}

// Attention over each half of the keys, merged, is attention over all of them; the sink counts in
// the merge alone.
class MergedAttention : public testing::TestWithParam<MergeForm> {
 protected:
  static constexpr std::int64_t kTokens = 20;
  static constexpr std::int64_t kKeys = 33;
  static constexpr std::int64_t kKeysOfFirst = 12;
  static constexpr std::int64_t kHeads = 4;
  static constexpr std::int64_t kDim = 32;

  void SetUp() override {
    std::uint64_t seed = 0;
    for (HostTensor* const input : {&q, &k, &v, &sinks}) {
      reference::fill_normal(input->view(), ++seed);
    }
    reference::store(cu_seqlens_q.view(), 1, kTokens);
  }

  // Attention over keys [first, end), as a part.
  void attend(int part, int first, int end) {
    HostTensor cu_seqlens_k(DType::int32, {2});
    reference::store(cu_seqlens_k.view(), 1, end - first);
    AttentionTensors tensors{.q = q.view(),
                             .k = rows_of(k.view(), first, end),
                             .v = rows_of(v.view(), first, end),
                             .o = entry_of(o.view(), part),
                             .cu_seqlens_q = cu_seqlens_q.view(),
                             .cu_seqlens_k = cu_seqlens_k.view()};
    if (GetParam() == MergeForm::normalized) {
      tensors.lse = entry_of(m.view(), part);
    } else {
      tensors.row_max = entry_of(m.view(), part);
      tensors.row_sum = entry_of(l.view(), part);
    }
    attention(tensors);
  }

  HostTensor q{DType::fp32, {kTokens, kHeads, kDim}};
  HostTensor k{DType::fp32, {kKeys, kHeads, kDim}};
  HostTensor v{DType::fp32, {kKeys, kHeads, kDim}};
  HostTensor sinks{DType::fp32, {kHeads}};
  HostTensor cu_seqlens_q{DType::int32, {2}};
  HostTensor o{DType::fp32, {2, kTokens, kHeads, kDim}};
  HostTensor m{DType::fp32, {2, kHeads, kTokens}};
  HostTensor l{DType::fp32, {2, kHeads, kTokens}};
};

TEST_P(MergedAttention, IsAttentionOverAllKeys) {
  attend(0, 0, kKeysOfFirst);
  attend(1, kKeysOfFirst, kKeys);
  HostTensor out(DType::fp32, {kTokens, kHeads, kDim});
  HostTensor lse_out(DType::fp32, {kHeads, kTokens});
  MergeStatesTensors tensors{
      .o = o.view(), .out = out.view(), .lse_out = lse_out.view(), .sinks = sinks.view()};
  if (GetParam() == MergeForm::normalized) {
    tensors.lse = m.view();
  } else {
    tensors.row_max = m.view();
    tensors.row_sum = l.view();
  }
  merge_states(tensors);

  HostTensor cu_seqlens_k(DType::int32, {2});
  reference::store(cu_seqlens_k.view(), 1, kKeys);
  const auto expected = reference::attention({.q = q.view(),
                                              .k = k.view(),
                                              .v = v.view(),
                                              .o = out.view(),
                                              .sinks = sinks.view(),
                                              .cu_seqlens_q = cu_seqlens_q.view(),
                                              .cu_seqlens_k = cu_seqlens_k.view()},
                                             {});
  EXPECT_LE(reference::compare(out.view(), expected.o).rel_fro, 1e-6);
  EXPECT_LE(reference::compare(lse_out.view(), expected.lse).max_abs, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Forms, MergedAttention,
                         testing::Values(MergeForm::normalized, MergeForm::unnormalized));

}  // namespace
}  // namespace tilewright::test
