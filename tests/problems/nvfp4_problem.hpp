// Problems of quantising: shapes, strides, layouts, inputs; and whether a result is right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::test {

// Values of the inputs.
enum class Nvfp4Inputs {
  normal,
  hard,    // blocks of ties, of subnormals, of zeros of both signs, of any finite bits, of extremes
  poison,  // hard, and in some blocks infinities and NaN
  graded,  // blocks of all scales, and half-way between two, where e is 1; computed it is, in many
  zeros,
};

struct Nvfp4Problem {
  std::int64_t rows = 1;
  std::int64_t columns = 16;
  DType dtype = DType::bf16;
  ScaleLayout layout = ScaleLayout::linear;
  GlobalScale kind = GlobalScale::encode;
  std::optional<float> global_scale = std::nullopt;  // computed when absent
  Nvfp4Inputs inputs = Nvfp4Inputs::normal;
  bool is_padded = false;  // gaps between the rows of x, codes and linear scales
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const Nvfp4Problem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct Nvfp4Set {
  Tensor x, codes, scales, global_scale;

  QuantizeNvfp4Tensors views(const Nvfp4Problem& problem) {
    QuantizeNvfp4Tensors tensors{.x = x.view(), .codes = codes.view(), .scales = scales.view()};
    if (problem.global_scale) {
      tensors.global_scale = global_scale.view();
    } else {
      tensors.computed_global_scale = global_scale.view();
    }
    return tensors;
  }
};

using Nvfp4HostSet = Nvfp4Set<reference::HostTensor>;

inline QuantizeNvfp4Options options_of(const Nvfp4Problem& problem) {
  return {.scale_layout = problem.layout, .global_scale_kind = problem.kind};
}

// Inputs, and outputs and gaps filled with kUnwritten.
Nvfp4HostSet make_tensors(const Nvfp4Problem& problem);

// Every byte as the float64 model has it, gaps untouched and padding of the scales zero.
void expect_right(const Nvfp4Problem& problem, const Nvfp4HostSet& result);

// Shapes, dtypes, layouts and conventions, all small; inputs hard or poisoned.
std::vector<Nvfp4Problem> nvfp4_problems();

}  // namespace tilewright::test
