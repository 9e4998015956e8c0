// A call of gemm_nvfp4(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "ops/gemm_nvfp4/checks.hpp"
#include "ops/gemm_nvfp4/params.hpp"
#include "ops/matrix_views.hpp"

namespace tilewright {
namespace {

// (1) or ([batch,] rows)
RowScales row_scales(const std::optional<ConstTensorView>& t, std::optional<GlobalScale> kind) {
  if (!t) {
    return {};
  }
  return {
      .data = static_cast<const float*>(t->data),
      .stride = {.batch = t->rank == 2 ? stride_of(*t, 0) : 0, .row = stride_of(*t, t->rank - 1)},
      .kind = *kind};
}

void set_epilogue(const GemmNvfp4Tensors& t, GemmNvfp4Params& p) {
  p.c = t.c.data;
  p.c_dtype = t.c.dtype;
  p.c_stride = matrix_strides(t.c);
  if (t.bias) {
    p.bias = t.bias->data;
    p.bias_stride = stride_of(*t.bias, 0);
  }
  if (t.residual) {
    p.residual = t.residual->data;
    p.residual_stride = matrix_strides(*t.residual);
  }
}

}  // namespace

DeviceArgument device_of(const GemmNvfp4Tensors& t) { return {"a", t.a.device}; }

GemmNvfp4Params params_of(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options,
                          const GemmNvfp4Problem& problem) {
  GemmNvfp4Params p{.m = static_cast<int>(problem.m),
                    .n = static_cast<int>(problem.n),
                    .k = static_cast<int>(problem.k),
                    .l = static_cast<int>(problem.l),
                    .a = t.a.data,
                    .a_dtype = t.a.dtype,
                    .a_stride = matrix_strides(t.a),
                    .global_a = row_scales(t.global_scale_a, options.global_scale_a_kind),
                    .b = static_cast<const std::uint8_t*>(t.b.data),
                    .b_is_packed = problem.b_is_packed,
                    .b_is_constant = options.b_is_constant,
                    .b_stride = matrix_strides(t.b),
                    .global_b = row_scales(t.global_scale_b, options.global_scale_b_kind)};
  if (t.sfa) {
    p.sfa = block_scales<const std::uint8_t>(*t.sfa, options.sfa_layout);
    p.sfa_batch_stride = matrix_strides(*t.sfa).batch;
  }
  if (t.sfb) {
    p.sfb = block_scales<const std::uint8_t>(*t.sfb, options.sfb_layout);
    p.sfb_batch_stride = matrix_strides(*t.sfb).batch;
  }
  set_epilogue(t, p);
  return p;
}

std::size_t gemm_nvfp4_workspace_bytes(const GemmNvfp4Tensors& tensors,
                                       const GemmNvfp4Options& options) {
  return prepare<GemmNvfp4>(tensors, options).workspace_bytes();
}

void gemm_nvfp4(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options,
                Workspace workspace, Stream stream) {
  prepare<GemmNvfp4>(tensors, options).launch(workspace, stream);
}

}  // namespace tilewright
