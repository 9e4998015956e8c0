// Problems of gemm_nvfp4: shapes, strides, operands, epilogues; and whether a result is right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/gemm_nvfp4.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright::test {

enum class GemmInputs {
  random,  // all codes, all scales up to 16, some negative: zeros and subnormals too
  exact,   // so small that every partial sum is exact in FP32, in any order
  nans,    // random, and one scale in 64 is NaN; so is one activation in 256, or infinite
  pairs,   // a is the identity, over and over, and b's rows have every code under every scale
};

// The order of an ([L,] rows, columns) matrix in memory: dense, with gaps between rows, or with the
// rows of all L side by side.
enum class GemmOrder { dense, padded_rows, batch_inside };

// How many numbers a global scale has. A small one has one, near the least possible; a large one
// has one near the greatest, and activations that are small to match.
enum class GlobalScales { none, one, each_row, small, large };

struct GemmCase {
  std::int64_t m = 1;
  std::int64_t n = 16;
  std::int64_t k = 64;
  std::optional<std::int64_t> l = std::nullopt;  // absent: matrices without a batch
  DType a_dtype = DType::bf16;
  DType c_dtype = DType::bf16;
  ScaleLayout layout = ScaleLayout::linear;  // of the operands' scales
  GlobalScales global_scales = GlobalScales::one;
  GlobalScale kind = GlobalScale::encode;
  bool bias = false;
  bool residual = false;
  bool in_place = false;  // the residual is c
  bool b_is_packed = false;
  bool batch_invariant = false;
  GemmOrder order = GemmOrder::dense;
  // What can differ between a and b, or residual and c, does, and vectors have gaps.
  bool is_mixed = false;
  GemmInputs inputs = GemmInputs::random;
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const GemmCase& c);

// Of a, where the case's own are those of b.
ScaleLayout sfa_layout(const GemmCase& c);
GlobalScales global_scales_a(const GemmCase& c);

GemmNvfp4Options options_of(const GemmCase& c, std::string_view kernel = "auto");

// What can_run() wants to know of it.
GemmNvfp4Problem constraints_of(const GemmCase& c);

// A case's tensors, in host or device memory.
template <typename Tensor>
struct GemmSet {
  Tensor a, b, packed_b, sfa, sfb, global_scale_a, global_scale_b, bias, residual, c;

  GemmNvfp4Tensors views(const GemmCase& problem) {
    GemmNvfp4Tensors tensors{.a = a.view(), .b = b.view(), .sfb = sfb.view(), .c = c.view()};
    if (problem.b_is_packed) {
      tensors.b = packed_b.view();
      tensors.sfb.reset();
    }
    const bool is_w4a4 = problem.a_dtype == DType::e2m1x2;
    if (is_w4a4) {
      tensors.sfa = sfa.view();
    }
    if (problem.global_scales != GlobalScales::none) {
      tensors.global_scale_b = global_scale_b.view();
      if (is_w4a4) {
        tensors.global_scale_a = global_scale_a.view();
      }
    }
    if (problem.bias) {
      tensors.bias = bias.view();
    }
    if (problem.residual) {
      tensors.residual = problem.in_place ? c.view() : residual.view();
    }
    return tensors;
  }
};

using GemmHostSet = GemmSet<reference::HostTensor>;

// Inputs; gaps, scales of no block, and c (unless it is the residual) are NaN.
GemmHostSet make_tensors(const GemmCase& c);

// How near c must be to the oracle's result of `inputs`, as make_tensors() gave them: a relative
// Frobenius error of at most 1e-6 over that of rounding to c's dtype, and element by element the
// bound of FP32 sums in any order. NaN where the oracle has it, and gaps untouched. If inputs are
// exact, c must be equal; with NVFP4 activations the sum is then one of integers.
void expect_right(const GemmCase& c, GemmHostSet inputs, const reference::HostTensor& result);

// Shapes, dtypes, layouts, orders and epilogues, all small.
std::vector<GemmCase> gemm_cases();

}  // namespace tilewright::test
