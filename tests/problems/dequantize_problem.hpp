// Problems of dequantising: every pair of a scale and a code.
#pragma once

#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::test {

struct DequantizeProblem {
  DType scale_dtype = DType::e4m3;  // or e8m0: MXFP4
  DType dtype = DType::fp32;
  ScaleLayout layout = ScaleLayout::linear;
  GlobalScale kind = GlobalScale::encode;
  std::optional<float> global_scale = std::nullopt;
  bool is_padded = false;  // gaps between the rows of codes, linear scales and out
};

std::ostream& operator<<(std::ostream& out, const DequantizeProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct DequantizeSet {
  Tensor codes, scales, global_scale, out;

  DequantizeNvfp4Tensors views(const DequantizeProblem& problem) {
    DequantizeNvfp4Tensors tensors{
        .codes = codes.view(), .scales = scales.view(), .out = out.view()};
    if (problem.global_scale) {
      tensors.global_scale = global_scale.view();
    }
    return tensors;
  }
};

using DequantizeHostSet = DequantizeSet<reference::HostTensor>;

inline DequantizeNvfp4Options options_of(const DequantizeProblem& problem) {
  return {.scale_layout = problem.layout, .global_scale_kind = problem.kind};
}

// 128 rows of two blocks have all 256 scales; every block has all 16 codes. Out and gaps are
// filled with kUnwritten.
DequantizeHostSet make_tensors(const DequantizeProblem& problem);

// Every value as the oracle has it, bit for bit, NaN in its one form, gaps untouched.
void expect_right(const DequantizeProblem& problem, const DequantizeHostSet& result);

std::vector<DequantizeProblem> dequantize_problems();

}  // namespace tilewright::test
