// A call of rotate_quantize(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include <cmath>

#include "ops/attention_strides.hpp"
#include "ops/rotary_tables.hpp"
#include "ops/rotate_quantize/checks.hpp"
#include "ops/rotate_quantize/params.hpp"

namespace tilewright {
namespace {

void set_output(const RotateQuantizeTensors& t, RotateQuantizeParams& params) {
  if (t.out) {
    params.out = static_cast<std::uint8_t*>(t.out->data);
    params.out_stride = row_strides(*t.out);
    return;
  }
  const TensorView& out = *t.out_transposed;  // ([batch,] heads, head_dim, columns)
  params.out = static_cast<std::uint8_t*>(out.data);
  params.out_stride = outer_strides(out, out.rank - 2, out.rank - 3);
  params.out_dim_stride = params.out_stride.seq;
  params.out_stride.seq = 1;
  params.is_transposed = true;
  params.out_columns = static_cast<int>(out.shape[out.rank - 1]);
}

void set_descale(const RotateQuantizeTensors& t, RotateQuantizeParams& params) {
  params.descale = data_of<float>(t.descale);
  params.fixed_descale = data_of<const float>(t.fixed_descale);
  if (t.descale) {
    params.descale_stride = statistic_strides(t.descale);
  } else if (t.fixed_descale->rank == 2) {
    params.descale_stride = {.batch = stride_of(*t.fixed_descale, 0),
                             .head = stride_of(*t.fixed_descale, 1)};
  }
}

void set_rotations(const RotateQuantizeTensors& t, const RotateQuantizeOptions& options,
                   RotateQuantizeParams& params) {
  if (options.seed) {
    params.is_rotated = true;
    params.negative_dims = negative_dims_of(*options.seed);
    params.rotation_factor =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.head_dim)));
  }
  if (t.rotary_cos) {
    params.rotary = rotary_of_tables(*t.rotary_cos, *t.rotary_sin);
    params.rotary.is_interleaved = options.interleaved;
    params.max_positions = static_cast<int>(t.rotary_cos->shape[0]);
  }
  params.positions = data_of<const std::int64_t>(t.positions);
  if (t.positions && t.positions->rank == 2) {
    params.positions_batch_stride = stride_of(*t.positions, 0);
  }
}

}  // namespace

DeviceArgument device_of(const RotateQuantizeTensors& t) { return {"x", t.x.device}; }

RotateQuantizeProblem problem_of(const RotateQuantizeTensors& t, const RotateQuantizeOptions&) {
  return {.dtype = t.x.dtype,
          .batch = batch_size(t),
          .len = seqlen_of(t.x),
          .heads = heads_of(t.x),
          .head_dim = head_dim_of(t.x),
          .packed = t.cu_seqlens.has_value()};
}

RotateQuantizeParams params_of(const RotateQuantizeTensors& t, const RotateQuantizeOptions& options,
                               const RotateQuantizeProblem& problem) {
  RotateQuantizeParams params{.x = t.x.data,
                              .x_stride = row_strides(t.x),
                              .dtype = t.x.dtype,
                              .heads = static_cast<int>(problem.heads),
                              .head_dim = static_cast<int>(problem.head_dim),
                              .blocks = {.cu_seqlens = data_of<const int>(t.cu_seqlens),
                                         .batch = static_cast<int>(problem.batch),
                                         .len = static_cast<int>(problem.len),
                                         .rows = options.descale_rows},
                              .multiprocessors = device_info(t.x.device).multiprocessors};
  set_output(t, params);
  set_descale(t, params);
  set_rotations(t, options, params);
  return params;
}

void rotate_quantize(const RotateQuantizeTensors& tensors, const RotateQuantizeOptions& options,
                     Stream stream) {
  Call<RotateQuantize> call = prepare<RotateQuantize>(tensors, options);
  if (options.check_values || tensors.x.device.kind == DeviceKind::cpu) {
    check_values(tensors, stream);
  }
  call.launch({}, stream);
}

}  // namespace tilewright
