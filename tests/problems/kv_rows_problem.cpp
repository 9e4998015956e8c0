#include "problems/kv_rows_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "problems/inputs.hpp"
#include "problems/problem.hpp"
#include "reference/kv_rows.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kGap = 16;  // elements: what a GPU's kernels are aligned to

HostTensor make_cache(const RowsProblem& p) {
  const bool is_bf16 = p.format == KvRowFormat::bf16;
  const std::int64_t row = is_bf16 ? kKvRowDims : kv_row_bytes(p.format);
  const bool has_planes = p.format == KvRowFormat::e4m3_bf16;
  const std::int64_t step = row + (p.is_padded && !has_planes ? kGap : 0);
  std::int64_t page = p.page_size * step;
  if (has_planes && (p.is_padded || page % kGap != 0)) {
    page = (page + 575) / 576 * 576;
  } else if (p.is_padded) {
    page += 2 * kGap;
  }
  return unwritten(
      HostTensor(is_bf16 ? DType::bf16 : DType::u8, {p.pages, p.page_size, row}, {page, step, 1}));
}

HostTensor make_vector_tensor(const RowsProblem& p) {
  return unwritten(
      HostTensor(p.dtype, {p.rows, kKvRowDims}, {kKvRowDims + (p.is_padded ? kGap : 0), 1}));
}

HostTensor make_slots(const RowsProblem& p, std::mt19937_64& random) {
  std::vector<std::int64_t> slots = shuffled(p.pages * p.page_size, random);
  slots.resize(static_cast<std::size_t>(p.rows));
  for (std::int64_t& slot : slots) {
    slot = random() % 5 == 0 ? -1 : slot;
  }
  return integers(DType::int64, slots);
}

// A value of a group whose largest are about `magnitude`.
double group_value(std::uint64_t kind, double magnitude, std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sign = random() % 2 == 0 ? 1.0 : -1.0;
  switch (kind) {
    case 0:
      return sign * 0.0;
    case 1:  // up to exactly 448 and 6 steps, with ties of E4M3 and E2M1
      return sign * std::ldexp(static_cast<double>(random() % 57), -3) * magnitude;
    case 2:
      return random() % 40 == 0 ? sign * kInfinity : sign * magnitude;
    case 3:
      return random() % 60 == 0 ? std::copysign(std::nan(""), sign) : sign * magnitude;
    default: {
      const auto fraction = static_cast<double>(random() % 4096);
      return sign * magnitude * std::ldexp(fraction, -static_cast<int>(random() % 24));
    }
  }
}

// Of every sixteen neighbours a kind and a magnitude.
void fill_hard(HostTensor& vectors, std::mt19937_64& random) {
  const TensorView view = vectors.view();
  for (std::int64_t row = 0; row < view.shape[0]; ++row) {
    const int exponent = static_cast<int>(random() % 60) - 45;
    for (std::int64_t first = 0; first < kKvRowDims; first += 16) {
      const auto kind = random() % 8;
      const double magnitude =
          std::ldexp(1.0, random() % 8 == 0 ? static_cast<int>(random() % 250) - 140
                                            : exponent + static_cast<int>(random() % 8));
      for (std::int64_t d = first; d < first + 16; ++d) {
        reference::store(view, row * view.stride[0] + d, group_value(kind, magnitude, random));
      }
    }
  }
}

void fill_bytes(HostTensor& tensor, std::mt19937_64& random) {
  std::generate_n(tensor.data(), tensor.bytes(),
                  [&] { return static_cast<std::byte>(random() >> 56); });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RowsProblem& p) {
  return out << name(p.format) << " " << name(p.dtype) << " rows " << p.rows << " pages " << p.pages
             << "x" << p.page_size << (p.has_specials ? " specials" : "")
             << (p.is_padded ? " padded" : "") << " seed " << p.seed;
}

RowsHostSet make_vectors(const RowsProblem& problem) {
  std::mt19937_64 random(problem.seed);
  RowsHostSet set{make_vector_tensor(problem), make_cache(problem), make_slots(problem, random)};
  if (problem.has_specials) {
    fill_hard(set.vectors, random);
  } else {
    reference::fill_normal(set.vectors.view(), random(), 2.0);
  }
  return set;
}

RowsHostSet make_rows(const RowsProblem& problem) {
  std::mt19937_64 random(problem.seed);
  RowsHostSet set{make_vector_tensor(problem), make_cache(problem), make_slots(problem, random)};
  fill_bytes(set.rows, random);
  return set;
}

void expect_quantized(const RowsProblem& problem, const RowsHostSet& result) {
  RowsHostSet expected = make_vectors(problem);
  reference::quantize_kv_rows(expected.quantize());
  EXPECT_TRUE(same_bytes(result.rows, expected.rows));
}

void expect_dequantized(const RowsProblem& problem, const RowsHostSet& result) {
  RowsHostSet expected = make_rows(problem);
  reference::dequantize_kv_rows(expected.dequantize());
  EXPECT_TRUE(same_bytes(result.vectors, expected.vectors));
}

std::vector<RowsProblem> rows_problems() {
  std::vector<RowsProblem> problems;
  for (const auto format :
       {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3, KvRowFormat::e2m1}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const std::int64_t page_size : {1, 2, 7, 64}) {
        for (const bool has_specials : {false, true}) {
          for (const bool is_padded : {false, true}) {
            problems.push_back({.format = format,
                                .dtype = dtype,
                                .rows = page_size == 64 ? 70 : 5,
                                .page_size = page_size,
                                .has_specials = has_specials,
                                .is_padded = is_padded,
                                .seed = problems.size() + 1});
          }
        }
      }
    }
  }
  return problems;
}

}  // namespace tilewright::test
