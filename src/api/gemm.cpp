// The calls of tilewright/gemm.hpp: checked, a kernel selected and launched.
#include "tilewright/gemm.hpp"

#include <string>

#include "cpu/cpu_gemm.hpp"
#include "cuda/cuda_backend.hpp"
#include "gemm_checks.hpp"
#include "gemm_params.hpp"
#include "kernel_selection.hpp"
#include "matrix_views.hpp"

namespace tilewright {
namespace {

// The kernel of that name, or the fastest.
const KernelInfo& select_kernel(std::string_view operation, std::string_view name,
                                const GemmProblem& problem, Device device) {
  return name == "auto" ? fastest_kernel(operation, problem, device)
                        : checked_kernel(named_kernel(operation, name), problem, device, "a");
}

const KernelInfo& check_and_select(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  check_arguments(t, options);
  const KernelInfo& kernel =
      select_kernel("gemm_nvfp4", options.kernel, problem_of(t, options), t.a.device);
  check_alignment(t, kernel);
  return kernel;
}

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

GemmNvfp4Params params_of(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options,
                          Workspace workspace) {
  const GemmProblem problem = problem_of(t, options);
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
                    .global_b = row_scales(t.global_scale_b, options.global_scale_b_kind),
                    .batch_invariant = options.batch_invariant,
                    .multiprocessors = device_info(t.a.device).multiprocessors,
                    .workspace = workspace.data};
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

std::size_t needed_bytes(const KernelInfo& kernel, const GemmNvfp4Tensors& t,
                         const GemmNvfp4Options& options) {
  return workspace_bytes(kernel, problem_of(t, options), device_info(t.a.device));
}

}  // namespace

std::size_t gemm_nvfp4_workspace_bytes(const GemmNvfp4Tensors& tensors,
                                       const GemmNvfp4Options& options) {
  return needed_bytes(check_and_select(tensors, options), tensors, options);
}

void gemm_nvfp4(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options,
                Workspace workspace, Stream stream) {
  const KernelInfo& kernel = check_and_select(tensors, options);
  check_workspace(workspace, needed_bytes(kernel, tensors, options),
                  "kernel " + std::string(kernel.name));
  const GemmNvfp4Params params = params_of(tensors, options, workspace);
  if (kernel.device == DeviceKind::cpu) {
    cpu::gemm_nvfp4(params);
  } else {
    cuda::run_gemm_nvfp4(kernel.name, params, tensors.a.device.index, stream);
  }
}

void gemm_bf16(const GemmBf16Tensors& t, std::string_view kernel_name, Stream stream) {
  check_arguments(t);
  const GemmProblem problem = problem_of(t);
  const KernelInfo& kernel = select_kernel("gemm_bf16", kernel_name, problem, t.a.device);
  check_alignment(t, kernel);
  const GemmBf16Params params{.m = static_cast<int>(problem.m),
                              .n = static_cast<int>(problem.n),
                              .k = static_cast<int>(problem.k),
                              .a = t.a.data,
                              .b = t.b.data,
                              .c = t.c.data,
                              .a_stride = stride_of(t.a, 0),
                              .b_stride = stride_of(t.b, 0),
                              .c_stride = stride_of(t.c, 0)};
  cuda::run_gemm_bf16(kernel.name, params, t.a.device.index, stream);
}

}  // namespace tilewright
