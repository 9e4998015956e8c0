// A call of rope(): its checks, what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include <algorithm>
#include <array>

#include "ops/attention_strides.hpp"
#include "ops/length_checks.hpp"
#include "ops/overlap.hpp"
#include "ops/rope/params.hpp"
#include "ops/rotary_tables.hpp"

namespace tilewright {
namespace {

constexpr std::array kDims = {"tokens", "heads", "head_dim"};
constexpr std::array kDimsOfOneHead = {"tokens", "head_dim"};

DimNames dims_of(const ConstTensorView& x) {
  return x.rank == 2 ? DimNames(kDimsOfOneHead) : DimNames(kDims);
}

std::int64_t heads_of(const ConstTensorView& x) { return x.rank == 2 ? 1 : x.shape[1]; }
std::int64_t head_dim_of(const ConstTensorView& x) { return x.shape[x.rank - 1]; }

OuterStrides strides_of(const ConstTensorView& x) {
  return {.seq = stride_of(x, 0), .head = x.rank == 2 ? 0 : stride_of(x, 1)};
}

void check_out(const RopeTensors& t) {
  check_tensor("out", t.out, dims_of(t.x), {", as x has"});
  check_dtype("out", t.out, t.x.dtype, ", the dtype of x");
  check_device("out", t.out, t.x.device, "x");
  for (int i = 0; i < t.x.rank; ++i) {
    check_same("out", dims_of(t.x)[static_cast<std::size_t>(i)], t.out.shape[i], "x's",
               t.x.shape[i]);
  }
  check_last_dim_is_contiguous("out", t.out, "head_dim must be");
  check_no_overlap("out", t.out);
}

bool is_in_place(const RopeTensors& t) {
  return t.out.data == t.x.data && strides_of(t.out).seq == strides_of(t.x).seq &&
         strides_of(t.out).head == strides_of(t.x).head;
}

void check_positions(const RopeTensors& t, Stream stream) {
  const auto positions = values_of<std::int64_t>(t.positions, stream);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    check_range("positions", positions[row], "row " + std::to_string(row), 0,
                t.rotary_cos.shape[0] - 1, "positions of rotary_cos");
  }
}

}  // namespace

void check_arguments(const RopeTensors& t, const RopeOptions&) {
  check_tensor("x", t.x, dims_of(t.x), {", or 2 (tokens, head_dim)"});
  check_is_float("x", t.x);
  check_last_dim_is_contiguous("x", t.x, "head_dim must be");
  check_out(t);
  check_rotary_tables(t.rotary_cos, t.rotary_sin, "x", t.x);
  check_tensor("positions", t.positions, DimNames(kDims).first<1>());
  check_dtype("positions", t.positions, DType::int64);
  check_device("positions", t.positions, t.x.device, "x");
  check_same("positions", "tokens", t.positions.shape[0], "x's", t.x.shape[0]);
  check_last_dim_is_contiguous("positions", t.positions, "must be");
  check_is_apart(
      "out", t.out,
      {{"rotary_cos", t.rotary_cos}, {"rotary_sin", t.rotary_sin}, {"positions", t.positions}});
  if (!is_in_place(t)) {
    check_is_apart("out", t.out, {{"x", t.x}}, ", or be x itself");
  }
}

void check_alignment(const RopeTensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("x", t.x, kernel.alignment_bytes);
  check_rows_are_aligned("out", t.out, kernel.alignment_bytes);
  check_elements_are_aligned("positions", t.positions);
}

DeviceArgument device_of(const RopeTensors& t) { return {"x", t.x.device}; }

RopeProblem problem_of(const RopeTensors& t, const RopeOptions&) {
  return {.dtype = t.x.dtype,
          .rows = t.x.shape[0],
          .heads = heads_of(t.x),
          .head_dim = head_dim_of(t.x),
          .rotary_dims = 2 * t.rotary_cos.shape[1]};
}

RopeParams params_of(const RopeTensors& t, const RopeOptions& options, const RopeProblem& problem) {
  Rotary rotary = rotary_of_tables(t.rotary_cos, t.rotary_sin);
  rotary.is_interleaved = options.interleaved;
  rotary.is_inverse = options.inverse;
  return {
      .x = t.x.data,
      .out = t.out.data,
      .dtype = problem.dtype,
      .rows = static_cast<int>(problem.rows),
      .heads = static_cast<int>(problem.heads),
      .head_dim = static_cast<int>(problem.head_dim),
      .x_stride = strides_of(t.x),
      .out_stride = strides_of(t.out),
      .rotary = rotary,
      .first_rotated = options.rotates_last ? static_cast<int>(problem.head_dim) - rotary.dims : 0,
      .positions = static_cast<const std::int64_t*>(t.positions.data),
      .max_positions = static_cast<int>(t.rotary_cos.shape[0])};
}

void rope(const RopeTensors& tensors, const RopeOptions& options, Stream stream) {
  Call<Rope> call = prepare<Rope>(tensors, options);
  if (options.check_values || tensors.x.device.kind == DeviceKind::cpu) {
    check_positions(tensors, stream);
  }
  call.launch({}, stream);
}

}  // namespace tilewright
