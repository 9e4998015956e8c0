// Problems of rotating and quantising: layouts, rotations, descales; and whether a result is right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright::test {

enum class FixedDescale { none, tensor, heads };

struct RotateProblem {
  std::int64_t batch = 2;
  std::int64_t len = 70;       // of each sequence, if rows are not packed
  std::vector<int> lengths{};  // of packed sequences, behind which there are some more rows
  std::int64_t heads = 2;
  std::int64_t head_dim = 64;
  bool is_transposed = false;
  bool is_padded = false;     // gaps between rows
  bool has_specials = false;  // NaN, infinities and zeros
  std::int64_t rotary_dims = 0;
  bool is_interleaved = false;
  bool has_half_tables = false;  // of the dtype of x, not FP32
  bool has_positions = false;
  FixedDescale fixed = FixedDescale::none;
  int descale_rows = 128;
  std::optional<std::uint64_t> seed = 3;  // of the rotation
  DType dtype = DType::bf16;
  std::uint64_t data_seed = 1;
};

std::ostream& operator<<(std::ostream& out, const RotateProblem& problem);

RotateQuantizeOptions options_of(const RotateProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct RotateSet {
  Tensor x;
  std::optional<Tensor> out = std::nullopt;
  std::optional<Tensor> out_transposed = std::nullopt;
  std::optional<Tensor> descale = std::nullopt;
  std::optional<Tensor> fixed_descale = std::nullopt;
  std::optional<Tensor> cu_seqlens = std::nullopt;
  std::optional<Tensor> rotary_cos = std::nullopt;
  std::optional<Tensor> rotary_sin = std::nullopt;
  std::optional<Tensor> positions = std::nullopt;

  RotateQuantizeTensors views() {
    RotateQuantizeTensors t{.x = x.view()};
    const auto set = [](auto& view, auto& tensor) {
      if (tensor) {
        view = tensor->view();
      }
    };
    set(t.out, out);
    set(t.out_transposed, out_transposed);
    set(t.descale, descale);
    set(t.fixed_descale, fixed_descale);
    set(t.cu_seqlens, cu_seqlens);
    set(t.rotary_cos, rotary_cos);
    set(t.rotary_sin, rotary_sin);
    set(t.positions, positions);
    return t;
  }

  std::vector<Tensor*> outputs() {
    std::vector<Tensor*> all;
    for (auto* const output : {&out, &out_transposed, &descale}) {
      if (*output) {
        all.push_back(&**output);
      }
    }
    return all;
  }
};

using RotateHostSet = RotateSet<reference::HostTensor>;

// Inputs, and outputs and gaps filled with kUnwritten.
RotateHostSet make_tensors(const RotateProblem& problem);

// Every byte of the outputs as the oracle has it, what is not written included.
void expect_right(const RotateProblem& problem, RotateHostSet& result);

// Layouts, rotations and descales of a dtype, all small, of head dims 64, 128 and 256.
std::vector<RotateProblem> rotate_problems(DType dtype);

}  // namespace tilewright::test
