#include "problems/rope_problem.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "problems/inputs.hpp"
#include "reference/rope.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kPositions = 40;

HostTensor make_heads(const RotationProblem& p) {
  const std::int64_t gap = p.is_padded ? 16 : 0;
  const std::int64_t head = p.head_dim + gap;
  if (p.heads == 0) {
    return unwritten(HostTensor(p.dtype, {p.rows, p.head_dim}, {head, 1}));
  }
  return unwritten(
      HostTensor(p.dtype, {p.rows, p.heads, p.head_dim}, {p.heads * head + gap, head, 1}));
}

HostTensor make_table(const RotationProblem& p, std::mt19937_64& random) {
  const std::int64_t pairs = p.rotary_dims / 2;
  HostTensor table(p.has_half_tables ? p.dtype : DType::fp32, {kPositions, pairs},
                   {pairs + (p.is_padded ? 3 : 0), 1});
  reference::fill_normal(table.view(), random());
  return table;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RotationProblem& p) {
  return out << p.rows << "x" << p.heads << "x" << p.head_dim << " rotary " << p.rotary_dims << " "
             << name(p.dtype) << (p.interleaved ? " interleaved" : "")
             << (p.rotates_last ? " last" : "") << (p.inverse ? " inverse" : "")
             << (p.has_half_tables ? " half" : "") << (p.is_in_place ? " in place" : "")
             << (p.has_specials ? " specials" : "") << (p.is_padded ? " padded" : "") << " seed "
             << p.seed;
}

RopeOptions options_of(const RotationProblem& p) {
  return {.interleaved = p.interleaved, .rotates_last = p.rotates_last, .inverse = p.inverse};
}

RotationHostSet make_tensors(const RotationProblem& p) {
  std::mt19937_64 random(p.seed);
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    positions.push_back(static_cast<std::int64_t>(random() % kPositions));
  }
  RotationHostSet set{make_heads(p), make_heads(p), make_table(p, random), make_table(p, random),
                      integers(DType::int64, positions)};
  reference::fill_normal(set.x.view(), random(), 8.0);
  if (p.has_specials) {
    fill_specials(set.x, random);
  }
  if (p.is_in_place) {
    set.out = set.x;
  }
  return set;
}

void expect_right(const RotationProblem& problem, const RotationHostSet& result) {
  RotationHostSet expected = make_tensors(problem);
  RopeTensors apart = expected.views(problem);
  apart.x = expected.x.view();
  reference::rope(apart, options_of(problem));
  EXPECT_TRUE(same_bytes(result.out, expected.out));
}

std::vector<RotationProblem> rotation_problems(DType dtype) {
  std::vector<RotationProblem> problems;
  const auto add = [&](RotationProblem problem) {
    problem.dtype = dtype;
    for (const bool is_in_place : {false, true}) {
      problem.is_in_place = is_in_place;
      problem.is_padded = problem.has_specials = problems.size() % 3 != 0;
      problem.seed = problems.size() + 1;
      problems.push_back(problem);
    }
  };
  for (const auto& [heads, head_dim, rotary_dims] : {std::array<std::int64_t, 3>{3, 512, 64},
                                                     {0, 512, 64},
                                                     {1, 128, 128},
                                                     {5, 80, 32},
                                                     {2, 16, 16},
                                                     {3, 1024, 512}}) {
    for (const bool interleaved : {true, false}) {
      for (const bool rotates_last : {true, false}) {
        for (const bool inverse : {false, true}) {
          add({.heads = heads,
               .head_dim = head_dim,
               .rotary_dims = rotary_dims,
               .interleaved = interleaved,
               .rotates_last = rotates_last,
               .inverse = inverse,
               .has_half_tables = heads == 5});
        }
      }
    }
  }
  return problems;
}

}  // namespace tilewright::test
