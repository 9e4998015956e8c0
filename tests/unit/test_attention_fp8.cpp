// Attention on FP8 on the CPU against the oracle, and the two oracles.
#include <gtest/gtest.h>

#include <cmath>

#include "common/columns.hpp"
#include "common/descale_blocks.hpp"
#include "problems/fp8_expectation.hpp"
#include "problems/problem_sets.hpp"
#include "ran.hpp"
#include "reference/attention_fp8.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

void check_all(const std::vector<Fp8Problem>& problems, std::size_t step = 1) {
  Ran ran;
  for (std::size_t i = 0; i < problems.size(); i += step) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problems[i]);
    Fp8HostSet result = make_tensors(problems[i]);
    attention_fp8(result.views(), options_of(problems[i], "cpu"));
    expect_right(problems[i], result, Weights::exact);
  }
}

TEST(AttentionFp8Cpu, SmallProblems) { check_all(fp8_problems(small_problems())); }

TEST(AttentionFp8Cpu, SmallProblemsWithFeatures) {
  check_all(fp8_problems(small_feature_problems()));
}

TEST(AttentionFp8Cpu, FeatureProblems) {
  constexpr std::size_t kEach = 101;
  check_all(fp8_problems(feature_problems()), kEach);
}

TEST(AttentionFp8Cpu, NaNsAndInfiniteSinks) {
  constexpr std::size_t kEach = 37;
  check_all(fp8_problems(special_problems()), kEach);
}

// One query and one key, by hand: s = 2 * 3 * 0.25 * (1.5 * 2), o = 5 * -0.875.
TEST(AttentionFp8Cpu, MultipliesByDescales) {
  const auto bytes = [](std::uint8_t byte) {
    HostTensor tensor(DType::e4m3, {1, 1, 1, 1});
    reference::store(tensor.view(), 0, byte);
    return tensor;
  };
  const auto number = [](double value) {
    HostTensor tensor(DType::fp32, {1});
    reference::store(tensor.view(), 0, value);
    return tensor;
  };
  const HostTensor q = bytes(0x3c);
  const HostTensor k = bytes(0x40);
  const HostTensor v = bytes(0xb6);
  const HostTensor q_descale = number(2);
  const HostTensor k_descale = number(3);
  const HostTensor v_descale = number(5);
  HostTensor o(DType::bf16, {1, 1, 1, 1});
  HostTensor lse(DType::fp32, {1, 1, 1});
  attention_fp8({.q = q.view(),
                 .k = k.view(),
                 .o = o.view(),
                 .v = v.view(),
                 .q_descale = q_descale.view(),
                 .k_descale = k_descale.view(),
                 .v_descale = v_descale.view(),
                 .lse = lse.view()},
                {.scale = 0.25f});
  EXPECT_EQ(reference::load(lse.view(), 0), 4.5);
  EXPECT_EQ(reference::load(o.view(), 0), -4.375);
}

TEST(DescaleBlocks, OfPackedSequencesAreTheirOwn) {
  for (const int rows : {64, 128}) {
    const std::vector<int> starts = {0, 0, 1, 64, 64, 192, 500, 501, 501, 1000};
    const int batch = static_cast<int>(starts.size()) - 1;
    const DescaleBlocks blocks{
        .cu_seqlens = starts.data(), .batch = batch, .len = 1000, .rows = rows};
    std::vector<int> found(1000, 0);
    for (int index = 0; index < blocks.count(); ++index) {
      const RowBlock block = blocks.block(0, index);
      for (int i = 0; i < block.count; ++i) {
        const int row = block.first + i;
        ++found[static_cast<std::size_t>(starts[static_cast<std::size_t>(block.sequence)] + row)];
        EXPECT_EQ(first_descale_block(starts.data(), block.sequence, rows) + row / rows, index);
      }
    }
    EXPECT_EQ(found, std::vector<int>(1000, 1));
  }
}

TEST(Columns, OfPackedSequencesAreTheirOwn) {
  const std::vector<int> starts = {0, 0, 1, 16, 16, 47, 47, 79, 80, 99};
  int end = 0;  // of the sequence before
  for (int b = 0; b + 1 < static_cast<int>(starts.size()); ++b) {
    const int first = first_column(starts.data(), b);
    EXPECT_EQ(first % 16, 0);
    EXPECT_GE(first, end);
    end = first + starts[static_cast<std::size_t>(b) + 1] - starts[static_cast<std::size_t>(b)];
  }
  EXPECT_LE(end, (starts.back() / 16 + static_cast<int>(starts.size()) - 1) * 16);
  EXPECT_EQ(first_column(starts.data(), 5), (47 / 16 + 5) * 16);
  EXPECT_EQ(first_column(nullptr, 5), 0);
}

TEST(DescaleBlocks, OfBatchEntriesCountFromEachOnesFirst) {
  const DescaleBlocks blocks{.batch = 3, .len = 130, .rows = 64};
  EXPECT_EQ(blocks.count(), 3);
  EXPECT_EQ(blocks.block(2, 2).sequence, 2);
  EXPECT_EQ(blocks.block(2, 2).first, 128);
  EXPECT_EQ(blocks.block(2, 2).count, 2);
}

// Rows as the accuracy goals have them: N(0, 1) + N(0, 100) * Bernoulli(0.001), 100 the variance.
HostTensor rows_with_outliers(std::uint64_t seed) {
  HostTensor x(DType::bf16, {1, 512, 2, 128});
  HostTensor outliers = x;
  reference::fill_normal(x.view(), seed);
  reference::fill_normal(outliers.view(), seed + 100, 10.0);
  for (std::int64_t i = 0; i < 512 * 2 * 128; ++i) {
    const auto mixed = (static_cast<std::uint64_t>(i) + seed * 7919) * 0x9e3779b97f4a7c15u;
    if ((mixed >> 32) % 1000 == 0) {
      reference::store(x.view(), i,
                       reference::load(x.view(), i) + reference::load(outliers.view(), i));
    }
  }
  return x;
}

double relative_error(const std::vector<double>& result, const std::vector<double>& exact) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (result[i] - exact[i]) * (result[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

TEST(AttentionFp8Oracle, RotationMakesOutliersHarmless) {
  const HostTensor q = rows_with_outliers(1);
  const HostTensor k = rows_with_outliers(2);
  const HostTensor v = rows_with_outliers(3);
  HostTensor o = q;
  const AttentionTensors tensors{.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view()};
  const auto exact = reference::attention(tensors, {}).o;
  const auto error = [&](const reference::Quantization& quantization) {
    return relative_error(reference::attention_of_quantized(tensors, {}, quantization).o, exact);
  };
  const double plain = error({.seed = std::nullopt, .descale_rows = 0});
  const double rotated = error({.seed = 5, .descale_rows = 128});
  EXPECT_GT(plain, 0);
  EXPECT_LT(rotated, plain);
}

// The first oracle on what rotate_quantize() wrote is the second on what it read.
void expect_same_oracles(bool v_transposed) {
  const HostTensor x = rows_with_outliers(4);
  constexpr int kRows = 64;
  constexpr std::uint64_t kSeed = 11;
  HostTensor rotated(DType::e4m3, {1, 512, 2, 128});
  HostTensor values(DType::e4m3, v_transposed ? std::vector<std::int64_t>{1, 2, 128, 512}
                                              : std::vector<std::int64_t>{1, 512, 2, 128});
  HostTensor rotated_descale(DType::fp32, {1, 2, 8});
  HostTensor descale = rotated_descale;
  rotate_quantize({.x = x.view(), .out = rotated.view(), .descale = rotated_descale.view()},
                  {.descale_rows = kRows, .seed = kSeed});
  RotateQuantizeTensors of_values{.x = x.view(), .descale = descale.view()};
  (v_transposed ? of_values.out_transposed : of_values.out) = values.view();
  rotate_quantize(of_values, {.descale_rows = kRows});
  HostTensor o = x;
  AttentionFp8Tensors tensors{.q = rotated.view(),
                              .k = rotated.view(),
                              .o = o.view(),
                              .q_descale = rotated_descale.view(),
                              .k_descale = rotated_descale.view(),
                              .v_descale = descale.view()};
  (v_transposed ? tensors.v_transposed : tensors.v) = values.view();
  const auto first = reference::attention_fp8(tensors, {.causal = true, .descale_rows = kRows});
  const auto second = reference::attention_of_quantized(
      {.q = x.view(), .k = x.view(), .v = x.view(), .o = o.view()}, {.causal = true},
      {.seed = kSeed, .descale_rows = kRows, .v_transposed = v_transposed});
  EXPECT_EQ(first.o, second.o);
  EXPECT_EQ(first.lse, second.lse);
}

TEST(AttentionFp8Oracle, QuantizedRowsAreThoseOfRotateQuantize) {
  expect_same_oracles(false);
  expect_same_oracles(true);
}

}  // namespace
}  // namespace tilewright::test
