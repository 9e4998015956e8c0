// Tensors that share memory and tensors that lie in each other's gaps.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <set>

#include "ops/overlap.hpp"

namespace tilewright {
namespace {

alignas(16) std::array<std::byte, 1024> memory;

ConstTensorView matrix(std::int64_t offset_bytes, DType dtype, std::int64_t rows,
                       std::int64_t columns, std::int64_t row_stride) {
  ConstTensorView view =
      contiguous<const std::byte>(memory.data() + offset_bytes, dtype, std::array{rows, columns});
  view.stride[0] = row_stride;
  return view;
}

void collect(const ConstTensorView& view, int dim, std::int64_t offset, std::set<int>& bytes) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
  if (dim == view.rank || dim == kMaxRank) {
    const auto base = static_cast<const std::byte*>(view.data) - memory.data();
    for (int i = 0; i < element_bytes; ++i) {
      bytes.insert(static_cast<int>(base + offset * element_bytes + i));
    }
    return;
  }
  for (std::int64_t i = 0; i < view.shape[dim]; ++i) {
    collect(view, dim + 1, offset + i * view.stride[dim], bytes);
  }
}

std::set<int> bytes_of(const ConstTensorView& view) {
  std::set<int> bytes;
  collect(view, 0, 0, bytes);
  return bytes;
}

void expect_disjoint(const ConstTensorView& a, const ConstTensorView& b) {
  EXPECT_FALSE(shares_bytes(a, b));
  EXPECT_FALSE(shares_bytes(b, a));
}

void expect_shared(const ConstTensorView& a, const ConstTensorView& b) {
  EXPECT_TRUE(shares_bytes(a, b));
  EXPECT_TRUE(shares_bytes(b, a));
}

TEST(SharesBytes, NeighboursDoNot) {
  expect_disjoint(matrix(0, DType::bf16, 4, 8, 8), matrix(64, DType::bf16, 4, 8, 8));
  expect_shared(matrix(0, DType::bf16, 4, 8, 8), matrix(63, DType::u8, 1, 1, 1));
}

TEST(SharesBytes, ColumnsOfOneMatrixDoNot) {
  const ConstTensorView left = matrix(0, DType::bf16, 8, 8, 24);
  expect_disjoint(left, matrix(16, DType::bf16, 8, 16, 24));
  expect_shared(left, matrix(14, DType::bf16, 8, 8, 24));
  expect_shared(left, matrix(34, DType::bf16, 8, 8, 24));
}

TEST(SharesBytes, EveryOtherRowDoesNot) {
  expect_disjoint(matrix(0, DType::bf16, 6, 8, 16), matrix(16, DType::bf16, 6, 8, 16));
  expect_disjoint(matrix(0, DType::bf16, 6, 8, 16), matrix(16, DType::bf16, 3, 8, 32));
  expect_shared(matrix(0, DType::bf16, 6, 8, 16), matrix(32, DType::bf16, 3, 8, 32));
}

TEST(SharesBytes, AnExpandedTensorIsItsOneRow) {
  expect_disjoint(matrix(16, DType::bf16, 1 << 29, 8, 0), matrix(32, DType::bf16, 8, 8, 8));
  expect_shared(matrix(16, DType::bf16, 1 << 29, 8, 0), matrix(30, DType::bf16, 8, 8, 8));
}

TEST(SharesBytes, LargeTensorsTakeNoTime) {
  const auto at = [](std::intptr_t address, std::array<std::int64_t, 3> stride) {
    return ConstTensorView{.data = reinterpret_cast<const void*>(address),
                           .dtype = DType::bf16,
                           .rank = 3,
                           .shape = {1 << 20, 1 << 16, 64},
                           .stride = {stride[0], stride[1], stride[2]}};
  };
  constexpr std::int64_t kBatch = std::int64_t{1} << 24;
  expect_disjoint(at(1024, {kBatch, 128, 1}), at(1024 + 128, {kBatch, 128, 1}));
  expect_shared(at(1024, {kBatch, 128, 1}), at(1024 + 126, {kBatch, 128, 1}));
  expect_shared(at(1024, {kBatch, 64, 1}), at(1024 + 128, {kBatch, 64, 1}));
}

// Every byte of small tensors of any strides, negative ones and those of 0 among them.
TEST(SharesBytes, IsExact) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  const auto any_tensor = [&] {
    constexpr std::array kDTypes = {DType::u8, DType::bf16, DType::fp32};
    ConstTensorView view;
    view.dtype = kDTypes[static_cast<std::size_t>(draw(0, 2))];
    view.rank = draw(1, 3);
    for (int i = 0; i < view.rank; ++i) {
      view.shape[i] = draw(1, 4);
      view.stride[i] = draw(-12, 12);
    }
    view.data = memory.data() + 512 + draw(-60, 60);
    return view;
  };
  int shared = 0;
  constexpr int kPairs = 20000;
  for (int pair = 0; pair < kPairs; ++pair) {
    const ConstTensorView a = any_tensor();
    const ConstTensorView b = any_tensor();
    const std::set<int> of_a = bytes_of(a);
    const std::set<int> of_b = bytes_of(b);
    const bool expected =
        std::any_of(of_a.begin(), of_a.end(), [&](int byte) { return of_b.contains(byte); });
    ASSERT_EQ(shares_bytes(a, b), expected) << "pair " << pair;
    shared += expected ? 1 : 0;
  }
  EXPECT_GT(shared, kPairs / 8);
  EXPECT_LT(shared, kPairs * 7 / 8);
}

}  // namespace
}  // namespace tilewright
