// Problems of rotating by position: shapes, pairs, tables; and whether a result is right.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/rope.hpp"

namespace tilewright::test {

struct RotationProblem {
  std::int64_t rows = 7;
  std::int64_t heads = 3;  // 0: x is (T, D)
  std::int64_t head_dim = 512;
  std::int64_t rotary_dims = 64;
  DType dtype = DType::bf16;
  bool interleaved = true;
  bool rotates_last = true;
  bool inverse = false;
  bool has_half_tables = false;  // of the dtype of x, not FP32
  bool is_in_place = false;
  bool has_specials = false;  // NaN, infinities and zeros in x
  bool is_padded = false;     // gaps between rows
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const RotationProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct RotationSet {
  Tensor x, out, rotary_cos, rotary_sin, positions;

  RopeTensors views(const RotationProblem& problem) {
    return {.x = problem.is_in_place ? out.view() : x.view(),
            .out = out.view(),
            .rotary_cos = rotary_cos.view(),
            .rotary_sin = rotary_sin.view(),
            .positions = positions.view()};
  }
};

using RotationHostSet = RotationSet<reference::HostTensor>;

RopeOptions options_of(const RotationProblem& problem);

// Inputs; out and gaps are filled with kUnwritten, or out has what x has if it is in place.
RotationHostSet make_tensors(const RotationProblem& problem);

// Every byte of out as the oracle has it, gaps included.
void expect_right(const RotationProblem& problem, const RotationHostSet& result);

// Shapes and options of a dtype, all small. Head dims are multiples of 8, rotary dims of 16.
std::vector<RotationProblem> rotation_problems(DType dtype);

}  // namespace tilewright::test
