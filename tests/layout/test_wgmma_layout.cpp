// Where WGMMA's operands lie: CuTe's layouts, and what the kernels derive from them, against the
// figures of the PTX ISA written out as plain formulas.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
#include <set>

#include "cuda/common/wgmma_layout.cuh"
#include "cuda/common/wgmma_shapes.cuh"

namespace tilewright::cuda {
namespace {

using namespace cute;

constexpr int kThreads = 128;
constexpr int kM = 64;

template <int kN, int kK>
using MmaQk = decltype(make_tiled_mma(wgmma_qk<bfloat16_t, kN, kK>()));
template <int kN, int kK>
using MmaPv = decltype(make_tiled_mma(
    GMMA::rs_op_selector<bfloat16_t, bfloat16_t, float, Shape<Int<kM>, Int<kN>, Int<kK>>,
                         GMMA::Major::K, GMMA::Major::MN>()));

// PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16", D and A.
int row_of(int thread, int value) {
  return 16 * (thread / 32) + thread % 32 / 4 + 8 * (value / 2 % 2);
}
int column_of(int thread, int value) { return 8 * (value / 4) + 2 * (thread % 4) + value % 2; }

template <typename TiledMma>
class AccumulatorLayout : public testing::Test {};
using Accumulators =
    testing::Types<MmaQk<64, 64>, MmaQk<64, 128>, MmaQk<128, 64>, MmaPv<64, 64>, MmaPv<128, 64>>;
TYPED_TEST_SUITE(AccumulatorLayout, Accumulators);

TYPED_TEST(AccumulatorLayout, IsTheIsasFigure) {
  using C = typename TypeParam::AtomLayoutC_TV;
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int value = 0; value < size<1>(C{}); ++value) {
      ASSERT_EQ(C{}(thread, value), row_of(thread, value) + kM * column_of(thread, value));
    }
  }
}

TYPED_TEST(AccumulatorLayout, RowsByColumnsGroupsAThreadsRegisters) {
  constexpr int kN = size<1>(typename TypeParam::AtomShape_MNK{});
  TypeParam mma;
  const Tensor coordinates = make_identity_tensor(Shape<Int<kM>, Int<kN>>{});
  for (int thread = 0; thread < kThreads; ++thread) {
    const Tensor tC = mma.get_slice(thread).partition_C(coordinates);
    const Tensor by_rows = make_tensor(tC.data(), rows_by_columns<TypeParam>(tC.layout()));
    ASSERT_EQ(size(by_rows), size(tC));
    ASSERT_EQ(size<0>(by_rows), 2);
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < size<0>(by_rows); ++i) {
      for (int j = 0; j < size<1>(by_rows); ++j) {
        const int row = get<0>(by_rows(i, j));
        const int column = get<1>(by_rows(i, j));
        ASSERT_EQ(row, static_cast<int>(get<0>(by_rows(i, 0)))) << "all of row i is one row";
        if (j % 2 == 1) {
          ASSERT_EQ(column, static_cast<int>(get<1>(by_rows(i, j - 1))) + 1) << "stored in pairs";
        }
        seen.emplace(row, column);
      }
    }
    std::set<std::pair<int, int>> expected;
    for (int value = 0; value < size(tC); ++value) {
      expected.emplace(row_of(thread, value), column_of(thread, value));
    }
    ASSERT_EQ(seen, expected);
  }
}

TYPED_TEST(AccumulatorLayout, RowLanesAreThoseThatShareARow) {
  constexpr RowLanes kLanes = row_lanes<TypeParam>();
  for (int thread = 0; thread < kThreads; ++thread) {
    std::set<int> derived;
    for (int i = 0; i < kLanes.count; ++i) {
      derived.insert(thread ^ (i * kLanes.first));
    }
    std::set<int> expected;
    for (int other = 0; other < kThreads; ++other) {
      if (row_of(other, 0) == row_of(thread, 0)) {
        expected.insert(other);
      }
    }
    ASSERT_EQ(derived, expected) << thread;
  }
}

// P leaves Q K^T in C's registers and enters P V as A: the same element in the same register.
template <int kBc, int kHeadDim>
void expect_c_becomes_a() {
  using Qk = MmaQk<kBc, kHeadDim>;
  using Pv = MmaPv<kHeadDim, kBc>;
  constexpr auto kRegisters = c_registers_of_a<Qk, Pv>();
  using C = typename Qk::AtomLayoutC_TV;
  using A = typename Pv::AtomLayoutA_TV;
  constexpr int kK = size<2>(typename Pv::AtomShape_MNK{});
  ASSERT_EQ(size(kRegisters), size<1>(C{}));
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int step = 0; step < kBc / kK; ++step) {
      for (int value = 0; value < size<1>(A{}); ++value) {
        const int in_a = A{}(thread, value) + kM * kK * step;
        ASSERT_EQ(C{}(thread, kRegisters(value, 0, step)), in_a);
      }
    }
  }
}

TEST(AccumulatorAsOperand, KeepsEveryElementInItsRegister) {
  expect_c_becomes_a<64, 64>();
  expect_c_becomes_a<64, 128>();
  expect_c_becomes_a<128, 64>();
  expect_c_becomes_a<128, 128>();
  expect_c_becomes_a<176, 128>();
  expect_c_becomes_a<80, 256>();
}

// The element offset in SMEM of (row, column) after TMA loads of 64 columns with the 128-byte
// swizzle: the loads lie one after the other, and in each row of 128 bytes the number of a 16-byte
// chunk is XORed with the row's number modulo 8.
int swizzled_offset(int rows, int row, int column) {
  const int copy = column / 64;
  const int chunk = column % 64 / 8;
  return copy * rows * 64 + row * 64 + (chunk ^ row % 8) * 8 + column % 8;
}

template <int kRows, int kHeadDim>
void expect_smem_layouts() {
  using K = GMMA::Layout_K_SW128_Atom<bfloat16_t>;
  using Mn = GMMA::Layout_MN_SW128_Atom<bfloat16_t>;
  // The kernels' layouts leave the swizzle to the address; here it goes into the layout's offsets.
  const auto sK = as_position_independent_swizzle_layout(
      tile_to_shape(K{}, Shape<Int<kRows>, Int<kHeadDim>, _2>{}));
  const auto sVt = as_position_independent_swizzle_layout(
      tile_to_shape(Mn{}, Shape<Int<kHeadDim>, Int<kRows>, _2>{}, Step<_2, _1, _3>{}));
  for (int stage = 0; stage < 2; ++stage) {
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kHeadDim; ++column) {
        const int expected = stage * kRows * kHeadDim + swizzled_offset(kRows, row, column);
        ASSERT_EQ(sK(row, column, stage), expected);
        ASSERT_EQ(sVt(column, row, stage), expected) << "V as (D, keys) is the same memory";
      }
    }
  }
}

TEST(SmemLayout, IsWhatTmaWrites) {
  expect_smem_layouts<64, 64>();
  expect_smem_layouts<64, 128>();
  expect_smem_layouts<128, 64>();
  expect_smem_layouts<128, 128>();
  expect_smem_layouts<176, 128>();
  expect_smem_layouts<80, 256>();
}

}  // namespace
}  // namespace tilewright::cuda
