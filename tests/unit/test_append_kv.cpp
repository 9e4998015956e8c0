// Writing into KV caches on the CPU: the oracle's bytes, and the places of rows whose values are
// wrong.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/append_rows.hpp"
#include "common/block_scale.hpp"
#include "problems/append_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class AppendKvCpu : public testing::TestWithParam<DType> {};

TEST_P(AppendKvCpu, WritesTheOraclesBytes) {
  Ran ran;
  for (const AppendProblem& problem : append_problems(GetParam())) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    AppendHostSet result = make_tensors(problem);
    append_kv(result.views(), options_of(problem));
    expect_right(problem, result);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AppendKvCpu,
                         testing::Values(DType::fp32, DType::fp16, DType::bf16),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST(AppendKv, TakesAnyHeadDim) {
  for (const AppendScales scales : {AppendScales::none, AppendScales::token}) {
    const AppendProblem problem{
        .heads = 2, .head_dim = 37, .value_dim = 13, .rotary_dims = 34, .scales = scales};
    AppendHostSet result = make_tensors(problem);
    append_kv(result.views(), options_of(problem));
    expect_right(problem, result);
  }
}

// One row of two dims in an FP32 cache, rotated by an angle, written out.
TEST(AppendKv, RotatesByTheAngleOfThePosition) {
  constexpr double kAngle = 0.3;
  HostTensor k(DType::fp32, {1, 1, 1, 2});
  HostTensor cache(DType::fp32, {1, 8, 1, 2});
  HostTensor v_cache = cache;
  HostTensor seqlens(DType::int32, {1});
  HostTensor cos(DType::fp32, {8, 1});
  HostTensor sin(DType::fp32, {8, 1});
  reference::store(k.view(), 0, 2.0);
  reference::store(k.view(), 1, -1.0);
  reference::store(seqlens.view(), 0, 5);
  for (int position = 0; position < 8; ++position) {
    reference::store(cos.view(), position, std::cos(kAngle * position));
    reference::store(sin.view(), position, std::sin(kAngle * position));
  }
  append_kv({.k = k.view(),
             .v = k.view(),
             .k_cache = cache.view(),
             .v_cache = v_cache.view(),
             .cache_seqlens = seqlens.view(),
             .rotary_cos = cos.view(),
             .rotary_sin = sin.view()});
  const double angle = 5 * kAngle;
  EXPECT_NEAR(reference::load(cache.view(), 10), 2 * std::cos(angle) + std::sin(angle), 1e-6);
  EXPECT_NEAR(reference::load(cache.view(), 11), 2 * std::sin(angle) - std::cos(angle), 1e-6);
  EXPECT_EQ(reference::load(v_cache.view(), 10), 2.0);
}

// One row of an e4m3 cache, with a descale of its own.
class QuantizedRow : public testing::Test {
 protected:
  void append(std::array<float, 4> values) {
    HostTensor k(DType::fp32, {1, 1, 4});
    std::memcpy(k.data(), values.data(), sizeof(values));
    HostTensor cache(DType::e4m3, {1, 1, 1, 4});
    HostTensor v_cache = cache;
    HostTensor slots(DType::int64, {1});
    HostTensor k_descale(DType::fp32, {1, 1, 1});
    HostTensor v_descale = k_descale;
    append_kv({.k = k.view(),
               .v = k.view(),
               .k_cache = cache.view(),
               .v_cache = v_cache.view(),
               .slot_mapping = slots.view(),
               .computed_k_descale = k_descale.view(),
               .computed_v_descale = v_descale.view()});
    descale = static_cast<float>(reference::load(k_descale.view(), 0));
    for (int i = 0; i < 4; ++i) {
      stored[i] = e4m3_to_float(static_cast<std::uint32_t>(cache.data()[i]));
    }
  }

  float descale = 0;
  std::array<float, 4> stored{};
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(QuantizedRow, HasItsLargestValueAt448) {
  append({1.0f, -3.5f, 0.0f, 1.75f});
  EXPECT_EQ(descale, 3.5f / 448);
  EXPECT_EQ(stored, (std::array{128.0f, -448.0f, 0.0f, 224.0f}));
}

TEST_F(QuantizedRow, OfZerosHasTheDescale1) {
  append({0.0f, -0.0f, 0.0f, 0.0f});
  EXPECT_EQ(descale, 1.0f);
  EXPECT_EQ(stored, (std::array{0.0f, 0.0f, 0.0f, 0.0f}));
}

TEST_F(QuantizedRow, SaturatesInfinitiesAndKeepsNaN) {
  append({kInfinity, 448.0f, -kInfinity, std::nanf("")});
  EXPECT_EQ(descale, 1.0f);
  EXPECT_EQ(stored[0], 448.0f);
  EXPECT_EQ(stored[2], -448.0f);
  EXPECT_TRUE(std::isnan(stored[3]));
}

TEST_F(QuantizedRow, OfSubnormalsHasTheSmallestNormalDescale) {
  append({1e-44f, 0.0f, 0.0f, 0.0f});
  EXPECT_EQ(descale, std::numeric_limits<float>::min());
  EXPECT_EQ(stored[0], 0.0f);
}

// Kernels on the GPU do not write where values are wrong that are not checked.
class WrongRows : public testing::Test {
 protected:
  AppendRows rows{.count = 6, .per_batch = 6, .pages = 4, .page_size = 8};
};

TEST_F(WrongRows, BySlotsAreNotStored) {
  constexpr std::array<std::int64_t, 6> kSlots = {31,
                                                  32,
                                                  -1,
                                                  -2,
                                                  std::numeric_limits<std::int64_t>::max(),
                                                  std::numeric_limits<std::int64_t>::min()};
  rows.slots = kSlots.data();
  EXPECT_EQ(rows.place_of(0).page, 3);
  EXPECT_EQ(rows.place_of(0).in_page, 7);
  for (int row = 1; row < 6; ++row) {
    EXPECT_EQ(rows.place_of(row).page, -1) << row;
  }
}

TEST_F(WrongRows, ByLengthsAreNotStored) {
  constexpr int kMax = std::numeric_limits<int>::max();
  constexpr std::array kLengths = {0, 13, -1, kMax, 15, 15};
  constexpr std::array kTable = {1, -1, 0, 7, 2, 2, 2, 2, 2, 3, 2, 3};
  rows.per_batch = 1;
  rows.seqlens = kLengths.data();
  rows.sequences = 6;
  rows.block_table = kTable.data();
  rows.block_table_stride = 2;
  rows.max_pages = 2;
  EXPECT_EQ(rows.place_of(0).page, 1);
  EXPECT_EQ(rows.place_of(1).page, -1);  // a page that the cache has not
  EXPECT_EQ(rows.place_of(2).page, -1);
  EXPECT_EQ(rows.place_of(3).page, -1);
  EXPECT_EQ(rows.place_of(4).page, 3);
  EXPECT_EQ(rows.place_of(4).in_page, 7);
  rows.block_table = nullptr;  // contiguous: 4 entries of 8
  EXPECT_EQ(rows.place_of(0).page, 0);
  EXPECT_EQ(rows.place_of(1).page, -1);
  EXPECT_EQ(rows.place_of(4).page, -1);
  constexpr std::array kEntries = {4, 0, 0, 0, 0, 0};
  rows.cache_batch_idx = kEntries.data();
  EXPECT_EQ(rows.place_of(0).page, -1);
}

TEST_F(WrongRows, AtPositionsBeyondTheRotationAreNotStored) {
  constexpr std::array<std::int64_t, 6> kSlots = {0, 1, 2, 3, 4, 5};
  constexpr std::array<std::int64_t, 6> kPositions = {0,
                                                      9,
                                                      10,
                                                      -1,
                                                      std::numeric_limits<std::int64_t>::max(),
                                                      std::numeric_limits<std::int64_t>::min()};
  rows.slots = kSlots.data();
  rows.positions = kPositions.data();
  rows.max_positions = 10;
  for (int row = 0; row < 6; ++row) {
    EXPECT_EQ(rows.place_of(row).page, row < 2 ? 0 : -1) << row;
    EXPECT_EQ(rows.place_of(row).position, row < 2 ? kPositions[row] : -1) << row;
  }
}

TEST_F(WrongRows, OfStartsThatDoNotAscendBelongToSomeSequence) {
  constexpr std::array kLengths = {0, 0, 0, 0};
  constexpr std::array kStarts = {0, 5, 2, -3, 4};
  rows.seqlens = kLengths.data();
  rows.cu_seqlens_new = kStarts.data();
  rows.sequences = 4;
  for (int row = 0; row < 6; ++row) {
    const int sequence = rows.sequence_of(row);
    EXPECT_EQ(sequence >= 0, row < 4) << row;
    EXPECT_LT(sequence, 4);
    EXPECT_LT(rows.place_of(row).page, 4);
  }
}

}  // namespace
}  // namespace tilewright::test
