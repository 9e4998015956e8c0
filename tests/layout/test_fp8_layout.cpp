// 8-bit WGMMA: that P's registers are operand A's in both orders of keys, against the figures of
// the PTX ISA written out as plain formulas; and how the tiles lie in SMEM.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
#include <set>

#include "cuda/attention/blocks/fp8_layout.cuh"

namespace tilewright::cuda {
namespace {

using namespace cute;

constexpr int kThreads = 128;

// PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32": D as of m64nNk16, and A.
int row_of_d(int thread, int value) {
  return 16 * (thread / 32) + thread % 32 / 4 + 8 * (value / 2 % 2);
}
int column_of_d(int thread, int value) { return 8 * (value / 4) + 2 * (thread % 4) + value % 2; }
int row_of_a(int thread, int value) {
  return 16 * (thread / 32) + thread % 32 / 4 + 8 * (value / 4 % 2);
}
int column_of_a(int thread, int value) { return 16 * (value / 8) + 4 * (thread % 4) + value % 4; }

// The key of a column of S and of V^T, as the kernels' comments say it.
int key_of_score(KeyOrder order, int bc, int column) {
  if (order == KeyOrder::kByValues) {
    return column;
  }
  return column < bc / 2 ? 2 * column : 2 * (column - bc / 2) + 1;
}
int key_of_value(KeyOrder order, int column) {
  if (order == KeyOrder::kByKeys) {
    return column;
  }
  constexpr int kKeys[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  return column / 16 * 16 + kKeys[column % 16];
}

template <KeyOrder kOrder, int kHeadDim, int kBc>
void expect_p_becomes_a() {
  using Tiles = Fp8Layouts<kHeadDim, kBc, 2>;
  constexpr auto kRegisters = Tiles::template score_registers<kOrder>();
  constexpr int kK = size<2>(typename Tiles::TiledMmaPv::AtomShape_MNK{});
  constexpr int kValues = size<1>(typename Tiles::TiledMmaPv::AtomLayoutA_TV{});
  static_assert(kK == 32 && kValues == 16);
  ASSERT_EQ(size(kRegisters), kBc / 2);
  for (int thread = 0; thread < kThreads; ++thread) {
    std::set<int> used;
    for (int step = 0; step < kBc / kK; ++step) {
      for (int value = 0; value < kValues; ++value) {
        const int in_s = kRegisters(value, 0, step);
        ASSERT_TRUE(used.insert(in_s).second) << "a register is used once";
        ASSERT_EQ(row_of_d(thread, in_s), row_of_a(thread, value));
        ASSERT_EQ(key_of_score(kOrder, kBc, column_of_d(thread, in_s)),
                  key_of_value(kOrder, kK * step + column_of_a(thread, value)));
        ASSERT_EQ(kRegisters(value + kValues * step), in_s) << "as round_to_e4m3 counts";
      }
    }
  }
}

TEST(Fp8Operand, KeepsEveryWeightInItsThread) {
  expect_p_becomes_a<KeyOrder::kByValues, 64, 128>();
  expect_p_becomes_a<KeyOrder::kByValues, 128, 128>();
  expect_p_becomes_a<KeyOrder::kByValues, 256, 128>();
  expect_p_becomes_a<KeyOrder::kByKeys, 64, 128>();
  expect_p_becomes_a<KeyOrder::kByKeys, 128, 128>();
  expect_p_becomes_a<KeyOrder::kByKeys, 256, 128>();
}

// CuTe's layouts of D and A are the ISA's.
TEST(Fp8Operand, LayoutsAreTheIsasFigures) {
  using Tiles = Fp8Layouts<128, 128, 2>;
  using D = typename Tiles::TiledMmaQk::AtomLayoutC_TV;
  using A = typename Tiles::TiledMmaPv::AtomLayoutA_TV;
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int value = 0; value < size<1>(D{}); ++value) {
      ASSERT_EQ(D{}(thread, value), row_of_d(thread, value) + 64 * column_of_d(thread, value));
    }
    for (int value = 0; value < size<1>(A{}); ++value) {
      ASSERT_EQ(A{}(thread, value), row_of_a(thread, value) + 64 * column_of_a(thread, value));
    }
  }
}

TEST(Fp8Mask, HasABitForEveryScoreBeforeTheEnd) {
  constexpr int kBc = 128;
  using Tiles = Fp8Layouts<128, kBc, 2>;
  for (int lane = 0; lane < 4; ++lane) {
    const Tensor tS = typename Tiles::TiledMmaQk{}.get_slice(lane).partition_C(
        make_identity_tensor(Shape<_64, Int<kBc>>{}));
    const Tensor by_rows =
        make_tensor(tS.data(), rows_by_columns<typename Tiles::TiledMmaQk>(tS.layout()));
    for (int end = -40; end <= kBc + 40; ++end) {
      for (int j = 0; j < size<1>(by_rows); ++j) {
        const int key = key_of_score(KeyOrder::kByKeys, kBc, get<1>(by_rows(0, j)));
        ASSERT_EQ(reordered_bits_before(end, lane) >> j & 1u, key < end ? 1u : 0u)
            << lane << " " << end << " " << j;
      }
    }
  }
}

// The byte in SMEM of (row, column) of a tile of `rows` rows after loads with a swizzle of `width`
// bytes: a load has `width` columns of all rows. CUDA's swizzles XOR the number of a 16-byte chunk
// with the number of its 128-byte line, modulo 8 or 4.
int swizzled_offset(int width, int rows, int row, int column) {
  const int linear = column / width * rows * width + row * width + column % width;
  const int line = linear / 128 % (width / 16);
  return linear ^ line * 16;
}

template <typename Layout>
void expect_swizzled(Layout layout, int width, int rows, int columns) {
  const auto offsets = as_position_independent_swizzle_layout(layout);
  for (int stage = 0; stage < 2; ++stage) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        ASSERT_EQ(offsets(row, column, stage),
                  stage * rows * columns + swizzled_offset(width, rows, row, column));
      }
    }
  }
}

template <int kHeadDim, int kBc>
void expect_smem_layouts() {
  using Tiles = Fp8Layouts<kHeadDim, kBc, 2>;
  expect_swizzled(typename Tiles::LayoutK{}, Tiles::kBoxColumns, kBc, kHeadDim);
  expect_swizzled(typename Tiles::LayoutVt{}, kBc, kHeadDim, kBc);
}

TEST(Fp8SmemLayout, IsWhatTmaWrites) {
  expect_smem_layouts<64, 128>();
  expect_smem_layouts<128, 128>();
  expect_smem_layouts<256, 128>();
}

// K7's transposition finds an address, and from it those of the columns, or rows, that are a
// multiple of 16 away.
template <int kHeadDim>
void expect_steps_of_16() {
  using Tiles = Fp8Layouts<kHeadDim, 128, 2>;
  const auto v = as_position_independent_swizzle_layout(typename Tiles::LayoutV{});
  const auto vt = as_position_independent_swizzle_layout(typename Tiles::LayoutVt{});
  const int next_rows = vt(16, 0, 0);
  for (int key = 0; key < 128; ++key) {
    for (int column = 0; column < kHeadDim; ++column) {
      const int in_box = column % Tiles::kBoxColumns / 16 * 16;
      ASSERT_EQ(v(key, column), v(key, column - in_box) ^ in_box);
      ASSERT_EQ(vt(column, key, 1), vt(column - in_box, key, 1) + in_box / 16 * next_rows);
    }
  }
}

TEST(Fp8SmemLayout, HasStepsOf16ByXorAndByAddition) {
  expect_steps_of_16<64>();
  expect_steps_of_16<128>();
  expect_steps_of_16<256>();
}

}  // namespace
}  // namespace tilewright::cuda
