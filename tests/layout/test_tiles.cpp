// Which tiles a block walks over, which keys rows see, and the tensor maps that TMA is given.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace {

bool sees(const AttentionParams& p, int row, int key) {
  return key < p.kv_len && (!p.causal || key <= row + p.kv_len - p.q_len);
}

std::vector<AttentionParams> random_params(int count) {
  std::mt19937 random(7);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  std::vector<AttentionParams> all(count);
  for (AttentionParams& p : all) {
    p.batch = between(1, 3);
    p.kv_heads = between(1, 3);
    p.heads = p.kv_heads * between(1, 3);
    p.q_len = between(1, 300);
    p.kv_len = between(1, 300);
    p.causal = between(0, 1) == 1;
  }
  return all;
}

TEST(KeyRange, CountsTheKeysThatARowSees) {
  for (const AttentionParams& p : random_params(200)) {
    for (int row = 0; row < p.q_len; ++row) {
      int expected = 0;
      for (int key = 0; key < p.kv_len; ++key) {
        expected += sees(p, row, key);
      }
      ASSERT_EQ(KeyRange(p).limit(row), expected);
    }
  }
}

TEST(TileWalk, VisitsEveryTileOnceAndEveryKeyThatIsSeen) {
  constexpr AttnConfig kShapes[] = {{64, 64, 64, 128}, {128, 128, 80, 256}, {64, 16, 96, 128}};
  for (const AttnConfig& c : kShapes) {
    for (const AttentionParams& p : random_params(60)) {
      std::set<std::tuple<int, int, int>> visited;
      for (int block = 0; block < tile_count(p, c); ++block) {
        const TileWalk walk = tile_walk(p, c, block);
        ASSERT_TRUE(visited.emplace(walk.batch, walk.head, walk.row0).second);
        ASSERT_EQ(walk.kv_head, walk.head * p.kv_heads / p.heads);
        ASSERT_LT(walk.row0, p.q_len);
        int tiles_needed = 0;
        int tiles_whole = (p.kv_len + c.bc - 1) / c.bc;
        for (int row = walk.row0; row < std::min(walk.row0 + c.br, p.q_len); ++row) {
          for (int key = 0; key < tiles_whole * c.bc; ++key) {
            if (!sees(p, row, key)) {
              tiles_whole = key / c.bc;
            }
          }
          for (int key = 0; key < p.kv_len; ++key) {
            tiles_needed =
                sees(p, row, key) ? std::max(tiles_needed, key / c.bc + 1) : tiles_needed;
          }
        }
        ASSERT_EQ(walk.kv_tiles, tiles_needed);
        ASSERT_EQ(walk.full_tiles, tiles_whole);
      }
      ASSERT_EQ(static_cast<int>(visited.size()),
                p.batch * p.heads * ((p.q_len + c.br - 1) / c.br));
    }
  }
}

TEST(TileWalk, TheLongestTilesOfAHeadComeFirst) {
  AttentionParams p;
  p.batch = 2;
  p.heads = p.kv_heads = 3;
  p.q_len = p.kv_len = 1000;
  p.causal = true;
  constexpr AttnConfig kConfig{128, 64, 64, 128};
  std::map<std::pair<int, int>, int> last;
  for (int block = 0; block < tile_count(p, kConfig); ++block) {
    const TileWalk walk = tile_walk(p, kConfig, block);
    const auto [entry, first] = last.emplace(std::pair{walk.batch, walk.head}, walk.kv_tiles);
    EXPECT_TRUE(first || walk.kv_tiles <= entry->second);
    entry->second = walk.kv_tiles;
  }
}

TEST(RowPointer, OffsetsNeed64Bits) {
  constexpr OuterStrides kStride{
      .batch = std::int64_t{1} << 33, .seq = std::int64_t{1} << 31, .head = 128};
  const char* const base = nullptr;
  const char* const row = row_pointer<const char>(base, kStride, 3, 2, 5);
  EXPECT_EQ(row - base, 3 * (std::int64_t{1} << 33) + 2 * (std::int64_t{1} << 31) + 5 * 128);
}

// (B, N, H, D) dense: dimension order outwards is D, N, H, B.
TEST(TensorMap, DescribesTheTensorFromTheContiguousDimensionOutwards) {
  constexpr OuterStrides kStride{.batch = 700 * 6 * 128, .seq = 6 * 128, .head = 128};
  const TensorMapSpec spec = tile_map_spec(2, 700, 6, 128, kStride, 64, TmaSwizzle::none);
  EXPECT_EQ(spec.size, (std::array<std::uint64_t, 4>{128, 700, 6, 2}));
  EXPECT_EQ(spec.stride_bytes,
            (std::array<std::uint64_t, 3>{2 * 6 * 128, 2 * 128, 2 * 700 * 6 * 128}));
  EXPECT_EQ(spec.box, (std::array<std::uint32_t, 4>{128, 64, 1, 1}));
}

TEST(TensorMap, StepsNowhereOverAnExpandedBatch) {
  constexpr OuterStrides kStride{.batch = 0, .seq = 6 * 128, .head = 128};
  const TensorMapSpec spec = tile_map_spec(2, 700, 6, 128, kStride, 64, TmaSwizzle::none);
  EXPECT_EQ(spec.stride_bytes[2], 0u);
}

// CUDA driver API, cuTensorMapEncodeTiled: strides are multiples of 16 bytes below 2^40, boxes have
// 1 to 256 elements, a swizzled box's row is at most 128 bytes.
TEST(TensorMap, KeepsTheDriversLimits) {
  for (const int head_dim : {64, 128, 256}) {
    for (const TmaSwizzle swizzle : {TmaSwizzle::none, TmaSwizzle::b128}) {
      // A single row, head and batch: strides come as 0 and leave as those of dense memory.
      const TensorMapSpec one = tile_map_spec(1, 1, 1, head_dim, {}, 128, swizzle);
      for (const std::uint64_t stride : one.stride_bytes) {
        EXPECT_GT(stride, 0u);
        EXPECT_EQ(stride % 16, 0u);
      }
      for (const std::uint32_t box : one.box) {
        EXPECT_GE(box, 1u);
        EXPECT_LE(box, 256u);
      }
      if (swizzle == TmaSwizzle::b128) {
        EXPECT_LE(2 * one.box[0], 128u);
        EXPECT_EQ(head_dim % one.box[0], 0u);
      }
    }
  }
}

}  // namespace
}  // namespace tilewright::cuda
