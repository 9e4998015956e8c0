// Problems of merging attention results: shapes, forms, strides, rows with specials; and whether a
// result is right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright::test {

// The form of the parts, and that of the result where it is not normalised.
enum class MergeForm { normalized, unnormalized, unnormalized_result };

struct MergeProblem {
  std::int64_t parts = 2;
  std::int64_t tokens = 1;
  std::int64_t heads = 1;
  std::int64_t head_dim = 64;
  DType dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  MergeForm form = MergeForm::normalized;
  bool has_sinks = false;
  bool has_lse_out = true;
  bool has_specials = false;  // rows without keys, infinities and NaN; also in the sinks
  bool is_padded = false;     // gaps between rows, dimensions in another order
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const MergeProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct MergeSet {
  Tensor o, out;
  Tensor m;  // lse or row_max
  std::optional<Tensor> l = std::nullopt;
  std::optional<Tensor> sinks = std::nullopt;
  std::optional<Tensor> lse_out = std::nullopt;
  std::optional<Tensor> row_max_out = std::nullopt;
  std::optional<Tensor> row_sum_out = std::nullopt;

  MergeStatesTensors views() {
    MergeStatesTensors tensors{.o = o.view(), .out = out.view()};
    if (l) {
      tensors.row_max = m.view();
      tensors.row_sum = l->view();
    } else {
      tensors.lse = m.view();
    }
    const auto set = [](auto& view, auto& tensor) {
      if (tensor) {
        view = tensor->view();
      }
    };
    set(tensors.sinks, sinks);
    set(tensors.lse_out, lse_out);
    set(tensors.row_max_out, row_max_out);
    set(tensors.row_sum_out, row_sum_out);
    return tensors;
  }

  std::vector<Tensor*> outputs() {
    std::vector<Tensor*> all = {&out};
    for (auto* const output : {&lse_out, &row_max_out, &row_sum_out}) {
      if (*output) {
        all.push_back(&**output);
      }
    }
    return all;
  }
};

using MergeHostSet = MergeSet<reference::HostTensor>;

// Inputs, and outputs and gaps filled with kUnwritten.
MergeHostSet make_tensors(const MergeProblem& problem);

// Values as the float64 model has them, within what FP32 arithmetic and the rounding of out allow;
// specials in their places; gaps untouched.
void expect_right(const MergeProblem& problem, MergeHostSet& result);

// Shapes, dtypes, forms and strides, all small. Head dims are multiples of 8.
std::vector<MergeProblem> merge_problems();

}  // namespace tilewright::test
