// Quantising and dequantising on the CPU, against the float64 model, byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "common/block_scale.hpp"
#include "problems/nvfp4_problem.hpp"
#include "ran.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

Nvfp4HostSet quantized(const Nvfp4Problem& problem) {
  Nvfp4HostSet tensors = make_tensors(problem);
  quantize_nvfp4(tensors.views(problem), options_of(problem));
  return tensors;
}

TEST(QuantizeNvfp4, EqualsTheFloat64Model) {
  Ran ran;
  for (const Nvfp4Problem& problem : nvfp4_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    expect_right(problem, quantized(problem));
  }
}

TEST(QuantizeNvfp4, EqualsTheFloat64ModelOnTenMillionValues) {
  for (const auto& [dtype, inputs, kind] :
       {std::tuple{DType::fp32, Nvfp4Inputs::hard, GlobalScale::encode},
        {DType::bf16, Nvfp4Inputs::poison, GlobalScale::encode},
        {DType::fp32, Nvfp4Inputs::graded, GlobalScale::decode},
        {DType::bf16, Nvfp4Inputs::graded, GlobalScale::encode},
        {DType::fp16, Nvfp4Inputs::normal, GlobalScale::encode}}) {
    Nvfp4Problem problem{
        .rows = 500, .columns = 10000, .dtype = dtype, .kind = kind, .inputs = inputs, .seed = 7};
    expect_right(problem, quantized(problem));
    problem.global_scale = 1.0f;
    expect_right(problem, quantized(problem));
  }
}

TEST(QuantizeNvfp4, AComputedGlobalScaleGivesTheSameBytesWhenGiven) {
  for (const GlobalScale kind : {GlobalScale::encode, GlobalScale::decode}) {
    Nvfp4Problem problem{.rows = 64, .columns = 512, .kind = kind};
    const Nvfp4HostSet computed = quantized(problem);
    problem.global_scale = static_cast<float>(reference::load(computed.global_scale.view(), 0));
    const Nvfp4HostSet given = quantized(problem);
    EXPECT_TRUE(same_bytes(computed.codes, given.codes));
    EXPECT_TRUE(same_bytes(computed.scales, given.scales));
  }
}

// 2688 / 0.033203125, which is bf16(0.0332).
constexpr float kArticlesGlobalScale = 80956.234375f;

// The NVFP4 article prints the first scales and bytes of a random tensor, and its global scale, but
// not the tensor: its own input cannot be quantised again. The values that the printed bytes stand
// for, quantised with the printed global scale, give them again.
TEST(QuantizeNvfp4, GivesTheBytesThatTheArticlePrints) {
  constexpr std::array<std::uint8_t, 8> kCodes = {108, 229, 121, 94, 85, 217, 160, 193};
  constexpr std::array kScales = {224.0f, 208.0f, 224.0f, 240.0f, 288.0f, 416.0f, 416.0f, 256.0f};
  HostTensor x(DType::bf16, {1, 128});
  for (int k = 0; k < 128; ++k) {
    const int code = k < 16 ? kCodes[k / 2] >> 4 * (k % 2) & 15 : 7;
    reference::store(x.view(), k,
                     reference::e2m1_value(code) * kScales[k / 16] / kArticlesGlobalScale);
  }
  HostTensor codes(DType::e2m1x2, {1, 64});
  HostTensor scales(DType::e4m3, {1, 8});
  HostTensor global_scale(DType::fp32, {1});
  reference::store(global_scale.view(), 0, kArticlesGlobalScale);
  quantize_nvfp4({.x = x.view(),
                  .codes = codes.view(),
                  .scales = scales.view(),
                  .global_scale = global_scale.view()},
                 {.global_scale_kind = GlobalScale::encode});
  EXPECT_EQ(std::memcmp(codes.data(), kCodes.data(), kCodes.size()), 0);
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(e4m3_to_float(static_cast<std::uint32_t>(scales.data()[j])), kScales[j]) << j;
  }
}

// Its global scale follows from the largest value of its tensor alone, 0.033203125.
TEST(QuantizeNvfp4, ComputesTheGlobalScaleThatTheArticlePrints) {
  for (const float amax : {0.033203125f, -0.033203125f}) {
    HostTensor x(DType::bf16, {2, 128});
    reference::fill_normal(x.view(), /*seed=*/1, /*stddev=*/0.004);
    reference::store(x.view(), 200, amax);
    HostTensor codes(DType::e2m1x2, {2, 64});
    HostTensor scales(DType::e4m3, {2, 8});
    HostTensor global_scale(DType::fp32, {1});
    quantize_nvfp4({.x = x.view(),
                    .codes = codes.view(),
                    .scales = scales.view(),
                    .computed_global_scale = global_scale.view()},
                   {.global_scale_kind = GlobalScale::encode});
    EXPECT_EQ(reference::load(global_scale.view(), 0), kArticlesGlobalScale);
  }
}

// What the header promises of blocks that have no good scale, written out.
class EdgeBlock : public testing::Test {
 protected:
  // Quantises one block with e = 1.
  void quantize(std::array<float, 16> values) {
    HostTensor x(DType::fp32, {1, 16});
    std::memcpy(x.data(), values.data(), sizeof(values));
    HostTensor codes(DType::e2m1x2, {1, 8});
    HostTensor scales(DType::e4m3, {1, 1});
    HostTensor one(DType::fp32, {1});
    reference::store(one.view(), 0, 1.0);
    quantize_nvfp4(
        {.x = x.view(), .codes = codes.view(), .scales = scales.view(), .global_scale = one.view()},
        {.global_scale_kind = GlobalScale::encode});
    scale = static_cast<int>(scales.data()[0]);
    for (int i = 0; i < 16; ++i) {
      code[i] = static_cast<int>(codes.data()[i / 2]) >> 4 * (i % 2) & 15;
    }
  }

  int scale = 0;
  std::array<int, 16> code{};
};

TEST_F(EdgeBlock, OfZeros) {
  quantize({0.0f, -0.0f});
  EXPECT_EQ(scale, 0);
  EXPECT_THAT(code, testing::ElementsAre(0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(EdgeBlock, TooSmallForAScale) {
  quantize({6 * 0x1p-10f, -1e-6f, 0.0f});  // half the smallest scale: a tie, to 0
  EXPECT_EQ(scale, 0);
  EXPECT_EQ(code[0], 7);
  EXPECT_EQ(code[1], 15);
  EXPECT_EQ(code[2], 0);
}

TEST_F(EdgeBlock, WithAnInfinity) {
  quantize({-std::numeric_limits<float>::infinity(), 448.0f, 3 * 448.0f});
  EXPECT_EQ(scale, 0x7e);
  EXPECT_EQ(code[0], 15);
  EXPECT_EQ(code[1], 2);
  EXPECT_EQ(code[2], 5);
}

TEST_F(EdgeBlock, WithANaN) {
  quantize({1.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f});
  EXPECT_EQ(scale, 0x7f);
  EXPECT_EQ(code[0], 7);
  EXPECT_EQ(code[1], 15);
  EXPECT_EQ(code[3], 7);
}

TEST_F(EdgeBlock, BeyondTheLargestScale) {
  quantize({6 * 500.0f, -224.0f});
  EXPECT_EQ(scale, 0x7e);
  EXPECT_EQ(code[0], 7);
  EXPECT_EQ(code[1], 9);
}

}  // namespace
}  // namespace tilewright::test
