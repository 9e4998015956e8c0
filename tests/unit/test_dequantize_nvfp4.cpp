// Dequantising and the layouts of scales on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "common/scale_layout.hpp"
#include "problems/dequantize_problem.hpp"
#include "problems/nvfp4_problem.hpp"
#include "problems/problem.hpp"
#include "ran.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

TEST(DequantizeNvfp4, EveryScaleAndCodeIsRight) {
  Ran ran;
  for (const DequantizeProblem& problem : dequantize_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DequantizeHostSet tensors = make_tensors(problem);
    dequantize_nvfp4(tensors.views(problem), options_of(problem));
    expect_right(problem, tensors);
  }
}

TEST(DequantizeNvfp4, QuantizingAgainChangesNothing) {
  const Nvfp4Problem problem{.rows = 30, .columns = 256, .layout = ScaleLayout::swizzled};
  Nvfp4HostSet first = make_tensors(problem);
  quantize_nvfp4(first.views(problem), options_of(problem));

  Nvfp4HostSet second = make_tensors(problem);
  second.x = HostTensor(DType::fp32, {problem.rows, problem.columns});
  dequantize_nvfp4({.codes = first.codes.view(),
                    .scales = first.scales.view(),
                    .out = second.x.view(),
                    .global_scale = first.global_scale.view()},
                   {.scale_layout = problem.layout, .global_scale_kind = problem.kind});
  quantize_nvfp4({.x = second.x.view(),
                  .codes = second.codes.view(),
                  .scales = second.scales.view(),
                  .global_scale = first.global_scale.view()},
                 options_of(problem));
  EXPECT_TRUE(same_bytes(first.codes, second.codes));
  EXPECT_TRUE(same_bytes(first.scales, second.scales));
}

TEST(ScaleLayout, EveryScaleHasAByteOfItsOwn) {
  for (const int rows : {1, 128, 200, 300}) {
    for (const int blocks : {1, 4, 7, 64}) {
      const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
      std::set<std::int64_t> used;
      for (int row = 0; row < rows; ++row) {
        for (int block = 0; block < blocks; ++block) {
          const std::int64_t offset =
              swizzled_offset(row, block, static_cast<int>(padded_blocks / 4));
          EXPECT_EQ(offset, reference::swizzled_index(row, block, blocks));
          EXPECT_LT(offset, padded_rows * padded_blocks);
          used.insert(offset);
        }
      }
      EXPECT_EQ(used.size(), static_cast<std::size_t>(rows * blocks));
    }
  }
}

TEST(ScaleLayout, SwizzlingThereAndBackIsExact) {
  for (const DType dtype : {DType::e4m3, DType::e8m0}) {
    for (const std::int64_t rows : {1, 127, 128, 129, 257}) {
      for (const std::int64_t blocks : {1, 3, 4, 5, 32}) {
        HostTensor linear(dtype, {rows, blocks}, {blocks + 3, 1});
        for (std::size_t i = 0; i < linear.bytes(); ++i) {
          linear.data()[i] = static_cast<std::byte>(1 + i % 255);
        }
        const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
        HostTensor swizzled(dtype, {padded_rows, padded_blocks});
        std::memset(swizzled.data(), static_cast<int>(kUnwritten), swizzled.bytes());
        swizzle_scales(linear.view(), swizzled.view());
        EXPECT_EQ(
            std::ranges::count(swizzled.data(), swizzled.data() + swizzled.bytes(), std::byte{0}),
            padded_rows * padded_blocks - rows * blocks);

        HostTensor back = linear;
        std::memset(back.data(), static_cast<int>(kUnwritten), back.bytes());
        unswizzle_scales(swizzled.view(), back.view());
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t offset = row * (blocks + 3);
          EXPECT_EQ(std::memcmp(back.data() + offset, linear.data() + offset,
                                static_cast<std::size_t>(blocks)),
                    0);
        }
        EXPECT_TRUE(reference::gaps_hold(back, kUnwritten));
      }
    }
  }
}

}  // namespace
}  // namespace tilewright::test
