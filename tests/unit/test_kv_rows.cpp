// DeepSeek-V4's KV rows on the CPU: the oracle's bytes, and what the header promises of scales,
// layouts and special values, written out.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/kv_row.hpp"
#include "problems/kv_rows_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(KvRows, QuantizeToTheOraclesBytes) {
  Ran ran;
  for (const RowsProblem& problem : rows_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    RowsHostSet result = make_vectors(problem);
    quantize_kv_rows(result.quantize());
    expect_quantized(problem, result);
  }
}

TEST(KvRows, DequantizeToTheOraclesBytes) {
  Ran ran;
  for (const RowsProblem& problem : rows_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    RowsHostSet result = make_rows(problem);
    dequantize_kv_rows(result.dequantize());
    expect_dequantized(problem, result);
  }
}

// A scale is 2^ceil(log2(max(amax, 1e-4) / 448)), of any amax.
TEST(KvRows, ScalesAreTheLeastPowersOfTwo) {
  Ran ran;
  constexpr float kLeast = 1e-4f;
  for (std::uint64_t bits = 0; bits < 0x7f800000u; bits += 4093) {
    ++ran;
    const auto amax = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const double scale = std::ldexp(1.0, static_cast<int>(e8m0_scale_of(amax)) - 127);
    const double floored = std::max(amax, kLeast);
    ASSERT_LE(floored, 448 * scale) << amax;
    ASSERT_GT(floored, 224 * scale) << amax;
    ASSERT_EQ(inverse_of_e8m0_scale(e8m0_scale_of(amax)), 1 / scale);
  }
  for (int exponent = -13; exponent < 119; ++exponent) {
    const float amax = std::ldexp(448.0f, exponent);
    EXPECT_EQ(e8m0_scale_of(amax), static_cast<std::uint32_t>(127 + exponent));
    EXPECT_EQ(e8m0_scale_of(std::nextafter(amax, kInfinity)),
              static_cast<std::uint32_t>(128 + exponent));
  }
}

// One vector in a cache of one page of two rows; it goes to the second.
class OneRow : public testing::Test {
 protected:
  void quantize(KvRowFormat format) {
    quantize_kv_rows({.x = x.view(), .rows = cache(format).view(), .slot_mapping = slot.view()});
  }

  std::array<float, kKvRowDims> dequantized(KvRowFormat format) {
    HostTensor out(DType::fp32, {1, kKvRowDims});
    dequantize_kv_rows(
        {.rows = cache(format).view(), .out = out.view(), .slot_mapping = slot.view()});
    std::array<float, kKvRowDims> values{};
    std::memcpy(values.data(), out.data(), sizeof(values));
    return values;
  }

  HostTensor& cache(KvRowFormat format) {
    return format == KvRowFormat::e4m3_bf16 ? e4m3_bf16 : format == KvRowFormat::e4m3 ? e4m3 : e2m1;
  }

  void set(int dim, float value) { reference::store(x.view(), dim, value); }

  static int byte(const HostTensor& tensor, int index) {
    return static_cast<int>(tensor.data()[index]);
  }

  OneRow() { reference::store(slot.view(), 0, 1); }

  HostTensor x{DType::fp32, {1, kKvRowDims}};
  HostTensor slot{DType::int64, {1}};
  HostTensor e4m3_bf16{DType::u8, {1, 2, 584}};
  HostTensor e4m3{DType::u8, {1, 2, 528}};
  HostTensor e2m1{DType::u8, {1, 2, 288}};
};

TEST_F(OneRow, LiesInTwoPlanes) {
  std::memset(e4m3_bf16.data(), 0xff, e4m3_bf16.bytes());
  set(0, 448.0f);
  set(63, -1.0f);
  set(64, 450.0f);
  set(447, 2.0f);
  set(448, 3.0f);
  set(511, -0.5f);
  quantize(KvRowFormat::e4m3_bf16);
  EXPECT_EQ(byte(e4m3_bf16, 575), 0xff);  // the first row
  EXPECT_EQ(byte(e4m3_bf16, 576), 0x7e);
  EXPECT_EQ(byte(e4m3_bf16, 576 + 63), 0xb8);
  EXPECT_EQ(byte(e4m3_bf16, 576 + 64), 0x76);   // 225, halfway to 240: 224
  EXPECT_EQ(byte(e4m3_bf16, 576 + 447), 0x78);  // 256
  EXPECT_EQ(byte(e4m3_bf16, 576 + 448 + 1), 0x40);
  EXPECT_EQ(byte(e4m3_bf16, 576 + 575), 0xbf);
  constexpr std::array kScales = {127, 128, 105, 105, 105, 105, 120, 0};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(byte(e4m3_bf16, 1152 + i), 0xff);
    EXPECT_EQ(byte(e4m3_bf16, 1160 + i), kScales[static_cast<std::size_t>(i)]) << i;
  }
}

TEST_F(OneRow, OfE4m3HasItsScalesBehindIt) {
  set(31, 1.0f);
  set(511, 500.0f);
  quantize(KvRowFormat::e4m3);
  EXPECT_EQ(byte(e4m3, 528 + 31), 0x78);
  EXPECT_EQ(byte(e4m3, 528 + 512), 119);
  EXPECT_EQ(byte(e4m3, 528 + 513), 105);
  EXPECT_EQ(byte(e4m3, 528 + 527), 128);
}

TEST_F(OneRow, OfE2m1HasTheFirstOfTwoInTheLowBits) {
  set(0, 6.0f);
  set(1, -1.5f);
  set(17, 0.5f * 0x1p-9f * 6.0f);  // half the smallest scale: a tie, to 0
  quantize(KvRowFormat::e2m1);
  EXPECT_EQ(byte(e2m1, 288), 0xb7);
  EXPECT_EQ(byte(e2m1, 288 + 256), 0x38);
  EXPECT_EQ(byte(e2m1, 288 + 257), 0);
  EXPECT_EQ(dequantized(KvRowFormat::e2m1)[17], 0.0f);
}

TEST_F(OneRow, KeepsAnInfinityOfE4m3) {
  set(3, kInfinity);
  set(4, -kInfinity);
  set(5, 1.0f);
  quantize(KvRowFormat::e4m3);
  const auto values = dequantized(KvRowFormat::e4m3);
  EXPECT_EQ(values[3], kInfinity);
  EXPECT_EQ(values[4], -kInfinity);
  EXPECT_EQ(values[5], 0.0f);
}

TEST_F(OneRow, MakesTheGroupOfANaNNaN) {
  for (int dim = 0; dim < kKvRowDims; ++dim) {
    set(dim, 1.0f);
  }
  set(100, -kNaN);
  for (const auto& [format, group] :
       {std::pair{KvRowFormat::e4m3_bf16, 64}, {KvRowFormat::e4m3, 32}, {KvRowFormat::e2m1, 16}}) {
    quantize(format);
    const auto values = dequantized(format);
    for (int dim = 0; dim < kKvRowDims; ++dim) {
      EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(dim)]), dim / group == 100 / group)
          << name(format) << " " << dim;
    }
  }
  EXPECT_EQ(byte(e4m3, 528 + 512 + 3), 255);
  EXPECT_EQ(byte(e4m3, 528 + 100), 0x7f);
}

// Where values are not checked, kernels ask this.
TEST(KvRows, OfSlotsThatTheCacheHasNotHaveNoPlace) {
  const KvRowsLayout layout = kv_rows_layout(KvRowFormat::e4m3, 1 << 29, 1 << 29, 1, 528);
  EXPECT_TRUE(layout.has(0));
  EXPECT_TRUE(layout.has((std::int64_t{1} << 58) - 1));
  EXPECT_FALSE(layout.has(std::int64_t{1} << 58));
  EXPECT_FALSE(layout.has(-1));
  EXPECT_FALSE(layout.has(std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(layout.has(std::numeric_limits<std::int64_t>::min()));
}

TEST(KvRows, SlotsOfMoreThan31BitsHaveTheirPage) {
  constexpr int kPageSize = 3;
  constexpr std::int64_t kPage_bytes = 4096;
  const KvRowsLayout layout =
      kv_rows_layout(KvRowFormat::bf16, (1 << 30) - 1, kPageSize, kPage_bytes, 1024);
  constexpr std::int64_t kBit31 = std::int64_t{1} << 31;
  for (const std::int64_t slot : {kBit31 - 2, kBit31 - 1, kBit31, kBit31 + 1, kBit31 + 1000}) {
    EXPECT_EQ(layout.place(slot).data, slot / kPageSize * kPage_bytes + slot % kPageSize * 1024)
        << slot;
  }
}

TEST(KvRows, FormatsFollowFromTheTensor) {
  EXPECT_EQ(kv_row_format(DType::bf16, 512), KvRowFormat::bf16);
  EXPECT_EQ(kv_row_format(DType::u8, 584), KvRowFormat::e4m3_bf16);
  EXPECT_EQ(kv_row_format(DType::u8, 528), KvRowFormat::e4m3);
  EXPECT_EQ(kv_row_format(DType::u8, 288), KvRowFormat::e2m1);
  EXPECT_EQ(kv_row_format(DType::u8, 1024), std::nullopt);
  EXPECT_EQ(kv_row_format(DType::e4m3, 528), std::nullopt);
}

}  // namespace
}  // namespace tilewright::test
