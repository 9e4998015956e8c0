#include "problems/rotate_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "problems/problem.hpp"
#include "problems/random.hpp"
#include "reference/rotate_quantize.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kPositions = 300;
constexpr std::int64_t kMoreRows = 5;  // behind the last packed sequence

HostTensor unwritten(HostTensor tensor) {
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

// Makes the tensors of one problem.
class RotateMaker {
 public:
  explicit RotateMaker(const RotateProblem& problem)
      : p_(problem),
        pick_(problem.data_seed),
        batch_(is_packed() ? static_cast<std::int64_t>(p_.lengths.size()) : p_.batch),
        len_(is_packed() ? std::accumulate(p_.lengths.begin(), p_.lengths.end(), kMoreRows)
                         : p_.len) {}

  RotateHostSet make() {
    RotateHostSet set{.x = rows(p_.dtype)};
    fill(set.x);
    if (p_.is_transposed) {
      set.out_transposed = columns();
    } else {
      set.out = rows(DType::e4m3);
    }
    if (is_packed()) {
      set.cu_seqlens = starts();
    }
    add_descale(set);
    add_positions(set);
    return set;
  }

 private:
  bool is_packed() const { return !p_.lengths.empty(); }

  HostTensor rows(DType dtype) const {
    const std::int64_t gap = p_.is_padded ? 16 : 0;
    const std::int64_t row = p_.heads * (p_.head_dim + gap) + gap;
    if (is_packed()) {
      return unwritten(
          HostTensor(dtype, {len_, p_.heads, p_.head_dim}, {row, p_.head_dim + gap, 1}));
    }
    return unwritten(HostTensor(dtype, {batch_, len_, p_.heads, p_.head_dim},
                                {len_ * row + gap, row, p_.head_dim + gap, 1}));
  }

  HostTensor columns() const {
    const std::int64_t count =
        16 * (is_packed() ? len_ / 16 + batch_ : (len_ + 15) / 16) + (p_.is_padded ? 32 : 0);
    const std::int64_t stride = count + (p_.is_padded ? 16 : 0);
    const std::int64_t head = p_.head_dim * stride;
    if (is_packed()) {
      return unwritten(HostTensor(DType::e4m3, {p_.heads, p_.head_dim, count}, {head, stride, 1}));
    }
    return unwritten(HostTensor(DType::e4m3, {batch_, p_.heads, p_.head_dim, count},
                                {p_.heads * head, head, stride, 1}));
  }

  // Normal values of different magnitudes from row to row; with specials also zeros, infinities and
  // NaN.
  void fill(HostTensor& x) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    constexpr std::array kSpecials = {0.0, -0.0, kInfinity, -kInfinity, kNaN, 1e-7, 6e4};
    HostTensor normal(DType::fp32, {static_cast<std::int64_t>(x.bytes() / size_bytes(p_.dtype))});
    reference::fill_normal(normal.view(), p_.data_seed);
    const TensorView t = x.view();
    const std::int64_t rows = is_packed() ? len_ : batch_ * len_;
    for (std::int64_t i = 0; i < rows * p_.heads; ++i) {
      const std::int64_t n = i / p_.heads;
      const std::int64_t offset = (is_packed() ? 0 : n / len_ * t.stride[0]) +
                                  (is_packed() ? n : n % len_) * t.stride[t.rank - 3] +
                                  i % p_.heads * t.stride[t.rank - 2];
      const double scale = std::exp2(static_cast<double>(pick_(-3, 3)));
      const bool is_special = p_.has_specials && pick_.one_in(9);
      const bool is_zero = p_.has_specials && pick_.one_in(7);
      for (std::int64_t d = 0; d < p_.head_dim; ++d) {
        double value = scale * reference::load(normal.view(), offset + d);
        value = is_special && pick_.one_in(40) ? pick_.one_of(kSpecials) : value;
        reference::store(t, offset + d, is_zero ? 0.0 : value);
      }
    }
  }

  HostTensor starts() const {
    HostTensor tensor(DType::int32, {batch_ + 1});
    std::int64_t start = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      start += p_.lengths[static_cast<std::size_t>(b)];
      reference::store(tensor.view(), b + 1, static_cast<double>(start));
    }
    return tensor;
  }

  void add_descale(RotateHostSet& set) {
    const std::int64_t blocks = is_packed() ? len_ / p_.descale_rows + batch_
                                            : (len_ + p_.descale_rows - 1) / p_.descale_rows;
    switch (p_.fixed) {
      case FixedDescale::none:
        set.descale =
            unwritten(is_packed() ? HostTensor(DType::fp32, {p_.heads, blocks}, {blocks + 1, 1})
                                  : HostTensor(DType::fp32, {batch_, p_.heads, blocks},
                                               {p_.heads * blocks + 1, 1, p_.heads}));
        return;
      case FixedDescale::tensor:
        set.fixed_descale = HostTensor(DType::fp32, {1});
        break;
      case FixedDescale::heads:
        set.fixed_descale = HostTensor(DType::fp32, {batch_, p_.heads}, {1, batch_});
        break;
    }
    auto* const values = reinterpret_cast<float*>(set.fixed_descale->data());
    for (std::size_t i = 0; i < set.fixed_descale->bytes() / sizeof(float); ++i) {
      values[i] = 0.01f * static_cast<float>(pick_(1, 50));
    }
  }

  void add_positions(RotateHostSet& set) {
    if (p_.rotary_dims == 0) {
      return;
    }
    const DType dtype = p_.has_half_tables ? p_.dtype : DType::fp32;
    const std::int64_t stride = p_.rotary_dims / 2 + (p_.is_padded ? 3 : 0);
    for (auto* const table : {&set.rotary_cos, &set.rotary_sin}) {
      *table = HostTensor(dtype, {kPositions, p_.rotary_dims / 2}, {stride, 1});
      reference::fill_normal((*table)->view(), pick_.bits());
    }
    if (p_.has_positions) {
      set.positions =
          is_packed() ? HostTensor(DType::int64, {len_}) : HostTensor(DType::int64, {batch_, len_});
      for (std::int64_t i = 0; i < (is_packed() ? len_ : batch_ * len_); ++i) {
        reference::store(set.positions->view(), i, static_cast<double>(pick_(0, kPositions - 1)));
      }
    }
  }

  RotateProblem p_;
  Random pick_;
  std::int64_t batch_;
  std::int64_t len_;  // rows of a sequence, or of all of them
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const RotateProblem& p) {
  out << name(p.dtype) << " batch " << p.batch << " len " << p.len << " lengths";
  for (const int length : p.lengths) {
    out << ' ' << length;
  }
  out << " heads " << p.heads << " head_dim " << p.head_dim
      << (p.is_transposed ? " transposed" : "") << (p.is_padded ? " padded" : "")
      << (p.has_specials ? " specials" : "") << " rotary " << p.rotary_dims
      << (p.is_interleaved ? " interleaved" : "") << (p.has_half_tables ? " half" : "")
      << (p.has_positions ? " positions" : "") << " fixed " << static_cast<int>(p.fixed)
      << " descale_rows " << p.descale_rows;
  if (p.seed) {
    out << " seed " << *p.seed;
  }
  return out << " data_seed " << p.data_seed;
}

RotateQuantizeOptions options_of(const RotateProblem& p) {
  return {.descale_rows = p.descale_rows, .seed = p.seed, .interleaved = p.is_interleaved};
}

RotateHostSet make_tensors(const RotateProblem& problem) { return RotateMaker(problem).make(); }

void expect_right(const RotateProblem& problem, RotateHostSet& result) {
  RotateHostSet expected = make_tensors(problem);
  reference::rotate_quantize(expected.views(), options_of(problem));
  const auto actual = result.outputs();
  const auto right = expected.outputs();
  for (std::size_t i = 0; i < right.size(); ++i) {
    EXPECT_TRUE(same_bytes(*actual[i], *right[i])) << "output " << i;
  }
}

std::vector<RotateProblem> rotate_problems(DType dtype) {
  const std::vector<std::vector<int>> lengths = {{}, {1, 0, 64, 130, 0, 63}};
  std::vector<RotateProblem> problems;
  const auto add = [&](RotateProblem p) {
    p.dtype = dtype;
    p.data_seed = problems.size() + 1;
    problems.push_back(p);
    p.is_padded = p.has_specials = true;
    p.data_seed = problems.size() + 1;
    problems.push_back(p);
  };
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::vector<int>& packed : lengths) {
      for (const bool is_transposed : {false, true}) {
        for (const int descale_rows : {64, 128}) {
          RotateProblem p{.len = 140, .lengths = packed, .head_dim = head_dim};
          p.is_transposed = is_transposed;
          p.descale_rows = descale_rows;
          p.seed = 1000 + problems.size();
          add(p);
          p.seed.reset();
          p.fixed = descale_rows == 64 ? FixedDescale::heads : FixedDescale::tensor;
          add(p);
          p.fixed = FixedDescale::none;
          p.seed = ~std::uint64_t{problems.size()};
          p.rotary_dims = head_dim / (descale_rows == 64 ? 2 : 1);
          p.is_interleaved = is_transposed;
          p.has_positions = descale_rows == 64;
          p.has_half_tables = packed.empty();
          add(p);
        }
      }
    }
  }
  add({.batch = 1, .len = 1, .heads = 1});
  add({.batch = 3, .len = 17, .heads = 5, .head_dim = 128, .rotary_dims = 20, .seed = 0});
  add({.len = 128, .descale_rows = 64, .seed = std::nullopt});
  return problems;
}

}  // namespace tilewright::test
