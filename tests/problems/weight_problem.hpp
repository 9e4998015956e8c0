// Problems of packing NVFP4 weights: shapes, strides, layouts; and whether a packed weight is
// right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright::test {

struct WeightProblem {
  std::int64_t n = 1;
  std::int64_t k = 16;
  std::optional<std::int64_t> l = std::nullopt;  // absent: tensors without a batch
  ScaleLayout layout = ScaleLayout::linear;
  bool is_padded = false;     // gaps between the rows of codes and linear scales
  bool is_canonical = false;  // scales are neither negative nor zero
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const WeightProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct WeightSet {
  Tensor codes, scales, packed;

  PrepackNvfp4WeightTensors prepack_views() {
    return {.codes = codes.view(), .scales = scales.view(), .packed = packed.view()};
  }
  UnpackNvfp4WeightTensors unpack_views() {
    return {.packed = packed.view(), .codes = codes.view(), .scales = scales.view()};
  }
};

using WeightHostSet = WeightSet<reference::HostTensor>;

// Codes and scales are any bytes, those of no block included; gaps and `packed` are kUnwritten.
WeightHostSet make_tensors(const WeightProblem& problem);

// The set's tensors with codes and scales filled with kUnwritten, to be unpacked to.
WeightHostSet without_weight(const WeightHostSet& tensors);

// Every code and scale of `packed` where docs/nvfp4.md has it, zeros beyond the weight.
void expect_packed(const WeightProblem& problem, const WeightHostSet& tensors);

// Codes and scales as they come back from the problem's `original` ones.
void expect_unpacked(const WeightProblem& problem, const WeightHostSet& original,
                     const WeightHostSet& unpacked);

// Odd sizes, batches, layouts, gaps.
std::vector<WeightProblem> weight_problems();

}  // namespace tilewright::test
