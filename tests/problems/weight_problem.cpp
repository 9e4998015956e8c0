#include "problems/weight_problem.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/nvfp4_weight_layout.hpp"
#include "problems/problem.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;
using reference::kBlock;

constexpr int kTile = 64;
constexpr int kTile_bytes = 2304;
constexpr int kSign = 0x80;
constexpr int kNaN = 0x7f;

// A code and its scale.
struct Element {
  int code;
  int scale;

  friend bool operator==(const Element&, const Element&) = default;
};

std::ostream& operator<<(std::ostream& out, const Element& e) {
  return out << "code " << e.code << " scale " << e.scale;
}

HostTensor matrix(const WeightProblem& p, DType dtype, std::int64_t rows, std::int64_t columns,
                  std::int64_t gap) {
  std::vector<std::int64_t> shape{p.l.value_or(1), rows, columns};
  std::vector<std::int64_t> stride{rows * (columns + gap) + gap, columns + gap, 1};
  if (!p.l) {
    shape.erase(shape.begin());
    stride.erase(stride.begin());
  }
  HostTensor tensor(dtype, shape, stride);
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

// The offset of a row of ([L,] rows, columns).
std::int64_t row_offset(const ConstTensorView& t, std::int64_t weight, std::int64_t row) {
  return (t.rank == 3 ? weight * t.stride[0] : 0) + row * t.stride[t.rank - 2];
}

template <typename F>
void fill_bytes(const TensorView& t, const F& next) {
  for (std::int64_t weight = 0; weight < (t.rank == 3 ? t.shape[0] : 1); ++weight) {
    for (std::int64_t row = 0; row < t.shape[t.rank - 2]; ++row) {
      for (std::int64_t column = 0; column < t.shape[t.rank - 1]; ++column) {
        reference::store(t, row_offset(t, weight, row) + column, next());
      }
    }
  }
}

std::int64_t scale_offset(const WeightProblem& p, const ConstTensorView& scales,
                          std::int64_t weight, std::int64_t row, std::int64_t block) {
  return p.layout == ScaleLayout::linear
             ? row_offset(scales, weight, row) + block
             : row_offset(scales, weight, 0) + reference::swizzled_index(row, block, p.k / kBlock);
}

Element element_at(const WeightProblem& p, const WeightHostSet& tensors, std::int64_t weight,
                   std::int64_t row, std::int64_t k) {
  const ConstTensorView codes = tensors.codes.view();
  const ConstTensorView scales = tensors.scales.view();
  const int byte = static_cast<int>(reference::load(codes, row_offset(codes, weight, row) + k / 2));
  return {.code = k % 2 == 0 ? byte % 16 : byte / 16,
          .scale = static_cast<int>(
              reference::load(scales, scale_offset(p, scales, weight, row, k / kBlock)))};
}

// What an element is once it was packed.
Element canonical(Element e) {
  const int magnitude = e.scale % kSign;
  const int code = magnitude == 0 ? e.code & 8 : e.code;
  return {.code = e.scale >= kSign ? code ^ 8 : code, .scale = magnitude};
}

std::uint32_t word_at(const std::byte* tile, int index) {
  std::uint32_t word = 0;
  std::memcpy(&word, tile + 4 * index, sizeof(word));
  return word;
}

// The element of a tile, by docs/nvfp4.md.
Element packed_element(const std::byte* tile, int row, int column) {
  const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
  const int is_g8 = row / 8 % 2;
  const int half = column / 32;
  const int pair = column % 32 / 16 * 4 + column % 16 / 8 * 2 + is_g8;
  const int words = 4 * thread + 2 * half;
  const std::uint32_t bits = unpack_pairs({word_at(tile, words), word_at(tile, words + 1)})[pair] >>
                             (column % 2 == 0 ? 0 : 16);
  const std::uint32_t scales = word_at(tile, kTile * kTile / 8 + thread / 4 * 2 + half);
  const std::uint32_t scale = packed_scale(scales, column % 32 >= 16, is_g8 != 0);
  return {.code = static_cast<int>((bits >> 12 & 8) | (bits >> 6 & 7)),
          .scale = static_cast<int>(unpack_scale(scale))};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const WeightProblem& p) {
  out << p.n << " x " << p.k;
  if (p.l) {
    out << " x " << *p.l;
  }
  return out << (p.layout == ScaleLayout::linear ? "" : " swizzled")
             << (p.is_padded ? " padded" : "") << (p.is_canonical ? " canonical" : "") << " seed "
             << p.seed;
}

WeightHostSet make_tensors(const WeightProblem& p) {
  const std::int64_t gap = p.is_padded ? 5 : 0;
  const bool is_linear = p.layout == ScaleLayout::linear;
  const auto [scale_rows, scale_blocks] =
      is_linear ? std::array{p.n, p.k / kBlock} : swizzled_scale_shape(p.n, p.k / kBlock);
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
  WeightHostSet set{
      .codes = matrix(p, DType::e2m1x2, p.n, p.k / 2, gap),
      .scales = matrix(p, DType::e4m3, scale_rows, scale_blocks, is_linear ? gap : 0),
      .packed = matrix(p, DType::u8, row_tiles, row_bytes, 0),
  };
  std::mt19937_64 random(p.seed);
  fill_bytes(set.codes.view(), [&] { return static_cast<int>(random() % 256); });
  fill_bytes(set.scales.view(), [&] {
    return static_cast<int>(p.is_canonical ? 1 + random() % kNaN : random() % 256);
  });
  return set;
}

WeightHostSet without_weight(const WeightHostSet& tensors) {
  WeightHostSet result = tensors;
  for (HostTensor* const tensor : {&result.codes, &result.scales}) {
    std::memset(tensor->data(), static_cast<int>(kUnwritten), tensor->bytes());
  }
  return result;
}

void expect_packed(const WeightProblem& p, const WeightHostSet& tensors) {
  const ConstTensorView packed = tensors.packed.view();
  const std::int64_t row_tiles = packed.shape[packed.rank - 2];
  const std::int64_t column_tiles = packed.shape[packed.rank - 1] / kTile_bytes;
  for (std::int64_t weight = 0; weight < p.l.value_or(1); ++weight) {
    for (std::int64_t row = 0; row < row_tiles * kTile; ++row) {
      for (std::int64_t k = 0; k < column_tiles * kTile; ++k) {
        const std::byte* const tile = tensors.packed.data() +
                                      row_offset(packed, weight, row / kTile) +
                                      k / kTile * kTile_bytes;
        const bool is_inside = row < p.n && k < p.k;
        const Element expected =
            is_inside ? canonical(element_at(p, tensors, weight, row, k)) : Element{0, 0};
        ASSERT_EQ(packed_element(tile, row % kTile, k % kTile), expected)
            << weight << ", " << row << ", " << k;
      }
    }
  }
}

void expect_unpacked(const WeightProblem& p, const WeightHostSet& original,
                     const WeightHostSet& unpacked) {
  WeightHostSet expected = without_weight(original);
  if (p.layout == ScaleLayout::swizzled) {
    std::memset(expected.scales.data(), 0, expected.scales.bytes());
  }
  const TensorView codes = expected.codes.view();
  const TensorView scales = expected.scales.view();
  for (std::int64_t weight = 0; weight < p.l.value_or(1); ++weight) {
    for (std::int64_t row = 0; row < p.n; ++row) {
      for (std::int64_t k = 0; k < p.k; k += 2) {
        const Element low = canonical(element_at(p, original, weight, row, k));
        const Element high = canonical(element_at(p, original, weight, row, k + 1));
        reference::store(codes, row_offset(codes, weight, row) + k / 2, low.code + 16 * high.code);
        reference::store(scales, scale_offset(p, scales, weight, row, k / kBlock), low.scale);
      }
    }
  }
  EXPECT_TRUE(same_bytes(expected.codes, unpacked.codes));
  EXPECT_TRUE(same_bytes(expected.scales, unpacked.scales));
}

std::vector<WeightProblem> weight_problems() {
  std::vector<WeightProblem> problems;
  std::uint64_t seed = 0;
  for (const std::int64_t n : {1, 7, 64, 65, 130, 200}) {
    for (const std::int64_t k : {16, 48, 64, 144, 256, 400}) {
      for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
        const bool is_canonical = seed % 3 == 0;
        problems.push_back(
            {.n = n, .k = k, .layout = layout, .is_canonical = is_canonical, .seed = ++seed});
        problems.push_back({.n = n,
                            .k = k,
                            .l = 1 + static_cast<std::int64_t>(seed % 3),
                            .layout = layout,
                            .is_padded = true,
                            .is_canonical = is_canonical,
                            .seed = ++seed});
      }
    }
  }
  return problems;
}

}  // namespace tilewright::test
