// The oracle's packed sequences, value head dims and un-normalised results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ran.hpp"
#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::reference {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsNan;
using testing::Pointwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTiny = 1e-12;

HostTensor tensor_of(DType dtype, std::vector<std::int64_t> shape,
                     const std::vector<double>& values) {
  HostTensor tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(tensor.view(), static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

HostTensor lengths(const std::vector<double>& values) {
  return tensor_of(DType::int32, {static_cast<std::int64_t>(values.size())}, values);
}

HostTensor normal(std::vector<std::int64_t> shape, std::uint64_t seed) {
  HostTensor tensor(DType::fp32, std::move(shape));
  fill_normal(tensor.view(), seed);
  return tensor;
}

// Elements [first, first + count) of the outermost dimension.
ConstTensorView slice(ConstTensorView tensor, std::int64_t first, std::int64_t count) {
  tensor.data = static_cast<const float*>(tensor.data) + first * tensor.stride[0];
  tensor.shape[0] = count;
  return tensor;
}

// A packed tensor as a batch of one.
ConstTensorView batch_of_one(const ConstTensorView& packed) {
  ConstTensorView view = packed;
  view.rank = 4;
  view.shape = {1, packed.shape[0], packed.shape[1], packed.shape[2]};
  view.stride = {0, packed.stride[0], packed.stride[1], packed.stride[2]};
  return view;
}

TEST(OracleSequences, ByHand) {
  const auto q = tensor_of(DType::fp32, {4, 1, 1}, {0, 0, 0, 0});
  const auto k = tensor_of(DType::fp32, {5, 1, 1}, {0, 0, 0, 0, 0});
  const auto v = tensor_of(DType::fp32, {5, 1, 1}, {2, 4, 10, 20, 90});
  const auto cu_q = lengths({0, 2, 2, 3});  // the fourth row belongs to none
  const auto cu_k = lengths({0, 2, 3, 5});
  const auto used = lengths({2, 1, 1});
  const AttentionResult result = reference::attention({.q = q.view(),
                                                       .k = k.view(),
                                                       .v = v.view(),
                                                       .o = {},
                                                       .cu_seqlens_q = cu_q.view(),
                                                       .cu_seqlens_k = cu_k.view(),
                                                       .seqused_k = used.view()},
                                                      {.causal = true});
  EXPECT_THAT(result.o, ElementsAre(2, 3, 20, IsNan()));
  EXPECT_THAT(result.lse, ElementsAre(0, std::log(2.0), 0, IsNan()));
}

TEST(OracleSequences, ASequenceWithoutKeysSeesNothing) {
  const auto q = tensor_of(DType::fp32, {2, 1, 1}, {1, 1});
  const auto k = tensor_of(DType::fp32, {1, 1, 1}, {2});
  const auto v = tensor_of(DType::fp32, {1, 1, 1}, {5});
  const auto cu_q = lengths({0, 1, 2});
  const auto cu_k = lengths({0, 0, 1});
  const AttentionResult result = reference::attention({.q = q.view(),
                                                       .k = k.view(),
                                                       .v = v.view(),
                                                       .o = {},
                                                       .cu_seqlens_q = cu_q.view(),
                                                       .cu_seqlens_k = cu_k.view()},
                                                      {});
  EXPECT_THAT(result.o, ElementsAre(0, 5));
  EXPECT_THAT(result.lse, ElementsAre(-kInfinity, 2));
}

// With everything else at once: each sequence by itself gives the same rows.
TEST(OracleSequences, PackedEqualsEachByItself) {
  const std::vector<std::int64_t> starts_q = {0, 7, 7, 20, 21};
  const std::vector<std::int64_t> starts_k = {0, 9, 14, 20, 50};
  const std::vector<std::int64_t> used = {9, 3, 0, 25};
  const auto cu_q = lengths({starts_q.begin(), starts_q.end()});
  const auto cu_k = lengths({starts_k.begin(), starts_k.end()});
  const auto seqused_k = lengths({used.begin(), used.end()});
  const auto q = normal({21, 4, 8}, 1);
  const auto k = normal({50, 2, 8}, 2);
  const auto v = normal({50, 2, 3}, 3);
  const auto sinks = normal({4}, 4);
  const AttentionOptions options{.causal = true, .window = {.left = 6}, .softcap = 2.0f};
  const AttentionResult packed = reference::attention({.q = q.view(),
                                                       .k = k.view(),
                                                       .v = v.view(),
                                                       .o = {},
                                                       .sinks = sinks.view(),
                                                       .cu_seqlens_q = cu_q.view(),
                                                       .cu_seqlens_k = cu_k.view(),
                                                       .seqused_k = seqused_k.view()},
                                                      options);
  test::Ran ran("sequences");
  for (std::size_t b = 0; b < used.size(); ++b) {
    const std::int64_t nq = starts_q[b + 1] - starts_q[b];
    if (nq == 0 || used[b] == 0) {
      continue;
    }
    ++ran;
    const AttentionResult alone =
        reference::attention({.q = batch_of_one(slice(q.view(), starts_q[b], nq)),
                              .k = batch_of_one(slice(k.view(), starts_k[b], used[b])),
                              .v = batch_of_one(slice(v.view(), starts_k[b], used[b])),
                              .o = {},
                              .sinks = sinks.view()},
                             options);
    const auto first = packed.o.begin() + starts_q[b] * 4 * 3;
    EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.end(), first)) << b;
    for (std::int64_t h = 0; h < 4; ++h) {
      const auto lse = alone.lse.begin() + h * nq;
      EXPECT_TRUE(std::equal(lse, lse + nq, packed.lse.begin() + h * 21 + starts_q[b])) << b;
    }
  }
}

TEST(OracleUnnormalized, ByHand) {
  const auto q = tensor_of(DType::fp32, {1, 2, 1, 1}, {1, 1});
  const auto k = tensor_of(DType::fp32, {1, 1, 1, 1}, {3});
  const auto v = tensor_of(DType::fp32, {1, 1, 1, 2}, {8, -4});
  HostTensor row_max(DType::fp32, {1, 1, 2});
  HostTensor row_sum(DType::fp32, {1, 1, 2});
  AttentionTensors tensors{.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .o = {},
                           .row_max = row_max.view(),
                           .row_sum = row_sum.view()};
  const AttentionResult result = reference::attention(tensors, {.causal = true});
  EXPECT_THAT(result.o, ElementsAre(0, 0, 8, -4));
  EXPECT_THAT(result.row_max, ElementsAre(-kInfinity, 3));
  EXPECT_THAT(result.row_sum, ElementsAre(0, 1));
  EXPECT_THAT(result.lse, ElementsAre(-kInfinity, 3));

  const auto sinks = tensor_of(DType::fp32, {1}, {3 + std::log(2.0)});
  tensors.sinks = sinks.view();
  const AttentionResult with_sink = reference::attention(tensors, {.causal = true});
  EXPECT_THAT(with_sink.o, Pointwise(DoubleNear(1e-6), {0.0, 0.0, 4.0, -2.0}));
  EXPECT_THAT(with_sink.row_sum, Pointwise(DoubleNear(1e-6), {1.0, 1.5}));
}

TEST(OracleUnnormalized, TwoHalvesOfTheKeysMergeIntoTheWhole) {
  const auto q = normal({1, 3, 2, 8}, 5);
  const auto k = normal({10, 1, 2, 8}, 6);  // keys outermost, for slice()
  const auto v = normal({10, 1, 2, 4}, 7);
  HostTensor statistic(DType::fp32, {1, 2, 3});
  const auto attend = [&](std::int64_t first, std::int64_t count, bool unnormalized) {
    const auto keys = [&](const HostTensor& tensor) {
      ConstTensorView view = slice(tensor.view(), first, count);
      std::swap(view.shape[0], view.shape[1]);
      std::swap(view.stride[0], view.stride[1]);
      return view;
    };
    AttentionTensors tensors{.q = q.view(), .k = keys(k), .v = keys(v), .o = {}};
    if (unnormalized) {
      tensors.row_max = tensors.row_sum = statistic.view();
    }
    return reference::attention(tensors, {});
  };
  const AttentionResult whole = attend(0, 10, false);
  const AttentionResult left = attend(0, 6, true);
  const AttentionResult right = attend(6, 4, true);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      const std::size_t row = h * 3 + i;
      const double m = std::max(left.row_max[row], right.row_max[row]);
      const double left_weight = std::exp(left.row_max[row] - m);
      const double right_weight = std::exp(right.row_max[row] - m);
      const double l = left.row_sum[row] * left_weight + right.row_sum[row] * right_weight;
      EXPECT_NEAR(m + std::log(l), whole.lse[row], kTiny);
      for (std::size_t d = 0; d < 4; ++d) {
        const std::size_t at = (i * 2 + h) * 4 + d;
        EXPECT_NEAR((left.o[at] * left_weight + right.o[at] * right_weight) / l, whole.o[at],
                    kTiny);
      }
    }
  }
}

TEST(OracleRounding, Fp16IsNearerThanBf16AndOnlyWeightsAreRoundedWithoutNormalising) {
  const auto q = normal({1, 9, 1, 8}, 1);
  const auto k = normal({1, 33, 1, 8}, 2);
  HostTensor statistic(DType::fp32, {1, 1, 9});
  const auto error = [&](Rounding rounding, bool unnormalized) {
    AttentionTensors tensors{.q = q.view(), .k = k.view(), .v = k.view(), .o = {}};
    if (unnormalized) {
      tensors.row_max = tensors.row_sum = statistic.view();
    }
    const auto exact = reference::attention(tensors, {}).o;
    const auto rounded = reference::attention(tensors, {}, rounding).o;
    double largest = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      largest = std::max(largest, std::abs(exact[i] - rounded[i]));
    }
    return largest;
  };
  for (const bool unnormalized : {false, true}) {
    EXPECT_GT(error(Rounding::fp16, unnormalized), 0);
    EXPECT_LT(4 * error(Rounding::fp16, unnormalized), error(Rounding::bf16, unnormalized));
  }
}

}  // namespace
}  // namespace tilewright::reference
