// The formats and layouts of block scaling as others have them, on the host: CUDA's conversions to
// FP4 and FP8, and CUTLASS's layout of scale factors.
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cute/tensor.hpp>
#include <cutlass/detail/sm100_blockscaled_layout.hpp>

#include "common/block_scale.hpp"
#include "common/e2m1.hpp"
#include "common/scale_layout.hpp"

namespace tilewright {
namespace {

// Exponents and the bits that rounding looks at one by one; below them nothing, or something.
template <typename Check>
void for_many_floats(Check check) {
  for (std::uint32_t high = 0; high < 1u << 16; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x8000u, 0xffffu}) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      if (!std::isnan(value)) {
        check(value);
      }
    }
  }
}

TEST(BlockFormats, E2m1IsCudas) {
  for_many_floats([](float value) {
    ASSERT_EQ(float_to_e2m1(value), __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest))
        << value;
  });
}

TEST(BlockFormats, E4m3IsCudas) {
  for_many_floats([](float value) {
    ASSERT_EQ(float_to_e4m3(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))
        << value;
  });
}

TEST(BlockFormats, SwizzledScalesAreCutlasss) {
  for (const int rows : {128, 256, 640}) {
    for (const int columns : {64, 192, 1024}) {
      const auto layout = cutlass::detail::Sm1xxBlockScaledConfig<16>::tile_atom_to_shape_SFA(
          cute::make_shape(rows, 128, columns, 1));
      for (int row = 0; row < rows; ++row) {
        for (int block = 0; block < columns / 16; ++block) {
          ASSERT_EQ(layout(row, block * 16, 0), swizzled_offset(row, block, columns / 64))
              << row << " " << block;
        }
      }
    }
  }
}

TEST(BlockFormats, RowsInScaleOrderGoThroughATilesScales) {
  constexpr int kBlockTiles = 3;
  for (int i = 0; i < 4 * kScaleTileRows; ++i) {
    const int expected =
        i / kScaleTileRows * kBlockTiles * kScaleTile_bytes + i % kScaleTileRows * kScaleTileBlocks;
    ASSERT_EQ(swizzled_offset(row_in_scale_order(i), 0, kBlockTiles), expected) << i;
  }
}

}  // namespace
}  // namespace tilewright
