#include "problems/merge_problem.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "problems/problem.hpp"
#include "reference/merge_states.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

HostTensor unwritten(HostTensor tensor) {
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

// (parts, tokens, heads, head_dim); padded, heads lie outside of tokens.
HostTensor part_rows(const MergeProblem& p) {
  if (!p.is_padded) {
    return unwritten(HostTensor(p.dtype, {p.parts, p.tokens, p.heads, p.head_dim}));
  }
  const std::int64_t row = p.head_dim + 8;
  return unwritten(HostTensor(p.dtype, {p.parts, p.tokens, p.heads, p.head_dim},
                              {p.heads * p.tokens * row, row, p.tokens * row, 1}));
}

// (parts, heads, tokens); padded, heads lie inside of tokens.
HostTensor part_statistics(const MergeProblem& p) {
  if (!p.is_padded) {
    return unwritten(HostTensor(DType::fp32, {p.parts, p.heads, p.tokens}));
  }
  return unwritten(
      HostTensor(DType::fp32, {p.parts, p.heads, p.tokens}, {p.heads * p.tokens + 3, 1, p.heads}));
}

HostTensor statistics(const MergeProblem& p) {
  return p.is_padded ? unwritten(HostTensor(DType::fp32, {p.heads, p.tokens}, {2, 2 * p.heads + 1}))
                     : unwritten(HostTensor(DType::fp32, {p.heads, p.tokens}));
}

HostTensor output_rows(const MergeProblem& p) {
  if (!p.is_padded) {
    return unwritten(HostTensor(p.out_dtype, {p.tokens, p.heads, p.head_dim}));
  }
  const std::int64_t row = p.head_dim + 16;
  return unwritten(
      HostTensor(p.out_dtype, {p.tokens, p.heads, p.head_dim}, {row, p.tokens * row, 1}));
}

// A row of one part: its offsets in o and in the statistics.
class PartRow {
 public:
  PartRow(MergeHostSet& set, std::int64_t part, std::int64_t token, std::int64_t head)
      : set_(set), part_(part), token_(token), head_(head) {}

  void set(double m, double l, double o) {
    set_statistic(set_.m, m);
    if (set_.l) {
      set_statistic(*set_.l, l);
    }
    const TensorView view = set_.o.view();
    const std::int64_t first =
        part_ * view.stride[0] + token_ * view.stride[1] + head_ * view.stride[2];
    for (std::int64_t d = 0; d < view.shape[3]; ++d) {
      reference::store(view, first + d, o);
    }
  }

  void set_max(double m) { set_statistic(set_.m, m); }

 private:
  void set_statistic(HostTensor& tensor, double value) {
    const TensorView view = tensor.view();
    reference::store(
        view, part_ * view.stride[0] + head_ * view.stride[1] + token_ * view.stride[2], value);
  }

  MergeHostSet& set_;
  std::int64_t part_;
  std::int64_t token_;
  std::int64_t head_;
};

// Six kinds of rows in turn: plain ones; keys in one part only; in none; an infinite maximum in one
// part, and in the last two; a NaN.
void add_specials(const MergeProblem& p, MergeHostSet& set) {
  for (std::int64_t row = 0; row < p.tokens * p.heads; ++row) {
    const auto part_row = [&](std::int64_t part) {
      return PartRow(set, part, row / p.heads, row % p.heads);
    };
    const std::int64_t kind = row % 6;
    const std::int64_t chosen = row / 6 % p.parts;
    for (std::int64_t part = 0; part < p.parts; ++part) {
      if (kind == 2 || (kind == 1 && part != chosen)) {
        part_row(part).set(-kInfinity, part % 2 == 0 ? 0 : kNaN, part % 2 == 0 ? 0 : kNaN);
      } else if ((kind == 3 && part == chosen) || (kind == 4 && part + 2 >= p.parts)) {
        part_row(part).set(kInfinity, 1, kind == 3 ? 0 : static_cast<double>(part + 1));
      } else if (kind == 5 && part == chosen) {
        part_row(part).set_max(kNaN);
      }
    }
  }
  if (set.sinks) {
    constexpr std::array kSinks = {0.5, -kInfinity, kInfinity, kNaN, -2.0};
    for (std::int64_t head = 0; head < p.heads; ++head) {
      reference::store(set.sinks->view(), head, kSinks[static_cast<std::size_t>(head) % 5]);
    }
  }
}

void expect_close(const HostTensor& actual, const std::vector<double>& expected, DType dtype) {
  constexpr double kFp32Error = 1e-6;
  const auto norms = reference::compare(actual.view(), expected);
  EXPECT_TRUE(norms.same_specials);
  EXPECT_LE(norms.rel_fro, reference::rounding_error(dtype, expected) * 1.01 + kFp32Error);
  EXPECT_TRUE(reference::gaps_hold(actual, kUnwritten));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const MergeProblem& p) {
  out << p.parts << " parts of " << p.tokens << "x" << p.heads << "x" << p.head_dim << " "
      << name(p.dtype) << " to " << name(p.out_dtype) << " form " << static_cast<int>(p.form);
  return out << (p.has_sinks ? " sinks" : "") << (p.has_lse_out ? " lse" : "")
             << (p.has_specials ? " specials" : "") << (p.is_padded ? " padded" : "") << " seed "
             << p.seed;
}

MergeHostSet make_tensors(const MergeProblem& p) {
  MergeHostSet set{.o = part_rows(p), .out = output_rows(p), .m = part_statistics(p)};
  reference::fill_normal(set.o.view(), p.seed);
  reference::fill_normal(set.m.view(), p.seed + 1, 4.0);
  if (p.form != MergeForm::normalized) {
    set.l = part_statistics(p);
    reference::fill_normal(set.l->view(), p.seed + 2, 0.25);
    const TensorView l = set.l->view();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(set.l->bytes() / 4); ++i) {
      reference::store(l, i, 1 + std::abs(reference::load(l, i)));  // a gap stays NaN
    }
  }
  if (p.form == MergeForm::unnormalized_result) {
    set.row_max_out = statistics(p);
    set.row_sum_out = statistics(p);
  }
  if (p.has_lse_out) {
    set.lse_out = statistics(p);
  }
  if (p.has_sinks) {
    set.sinks = HostTensor(DType::fp32, {p.heads});
    reference::fill_normal(set.sinks->view(), p.seed + 3);
  }
  if (p.has_specials) {
    add_specials(p, set);
  }
  return set;
}

void expect_right(const MergeProblem& p, MergeHostSet& result) {
  const auto expected = reference::merge_states(result.views());
  {
    SCOPED_TRACE("out");
    expect_close(result.out, expected.out, p.out_dtype);
  }
  const auto check = [](const char* what, const std::optional<HostTensor>& statistic,
                        const std::vector<double>& values) {
    if (statistic) {
      SCOPED_TRACE(what);
      expect_close(*statistic, values, DType::fp32);
    }
  };
  check("lse_out", result.lse_out, expected.lse);
  check("row_max_out", result.row_max_out, expected.row_max);
  check("row_sum_out", result.row_sum_out, expected.row_sum);
}

std::vector<MergeProblem> merge_problems() {
  std::vector<MergeProblem> problems;
  std::uint64_t seed = 0;
  for (const auto& [dtype, out_dtype, form] :
       {std::tuple{DType::bf16, DType::bf16, MergeForm::normalized},
        {DType::fp16, DType::fp16, MergeForm::normalized},
        {DType::fp32, DType::fp32, MergeForm::normalized},
        {DType::fp32, DType::bf16, MergeForm::normalized},
        {DType::fp32, DType::fp32, MergeForm::unnormalized},
        {DType::fp32, DType::fp16, MergeForm::unnormalized},
        {DType::fp32, DType::bf16, MergeForm::unnormalized},
        {DType::fp32, DType::fp32, MergeForm::unnormalized_result}}) {
    for (const auto& [parts, tokens, heads, head_dim] : {std::array<std::int64_t, 4>{1, 1, 1, 8},
                                                         {2, 33, 3, 64},
                                                         {5, 7, 8, 192},
                                                         {3, 100, 12, 128},
                                                         {17, 4, 2, 512},
                                                         {4, 5, 1, 72}}) {
      MergeProblem problem{.parts = parts,
                           .tokens = tokens,
                           .heads = heads,
                           .head_dim = head_dim,
                           .dtype = dtype,
                           .out_dtype = out_dtype,
                           .form = form};
      const auto add = [&] {
        problem.seed = ++seed * 10;
        problems.push_back(problem);
      };
      add();
      problem.has_sinks = true;
      problem.is_padded = true;
      add();
      problem.has_specials = true;
      add();
      problem.has_sinks = false;
      problem.has_lse_out = false;
      problem.is_padded = false;
      add();
    }
  }
  return problems;
}

}  // namespace tilewright::test
