// A call of gemm_bf16(): its checks, what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "ops/gemm_bf16/params.hpp"
#include "ops/matrix_checks.hpp"
#include "ops/matrix_views.hpp"
#include "ops/overlap.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"

namespace tilewright {

void check_arguments(const GemmBf16Tensors& t, const GemmBf16Options&) {
  const auto check = [&](const char* argument, const ConstTensorView& matrix) {
    check_tensor(argument, matrix, kMatrixDims);
    check_dtype(argument, matrix, DType::bf16);
    check_device(argument, matrix, t.a.device, "a");
    check_last_dim_is_contiguous(argument, matrix, "must be");
  };
  check("a", t.a);
  check("b", t.b);
  check("c", t.c);
  check_same("b", "columns", t.b.shape[1], "a's", t.a.shape[1]);
  check_same("c", "rows", t.c.shape[0], "a's", t.a.shape[0]);
  check_same("c", "columns", t.c.shape[1], "b's rows,", t.b.shape[0]);
  check_no_overlap("c", t.c);
  check_is_apart("c", t.c, {{"a", t.a}, {"b", t.b}});
}

void check_alignment(const GemmBf16Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("a", t.a, kernel.alignment_bytes);
  check_rows_are_aligned("b", t.b, kernel.alignment_bytes);
  check_rows_are_aligned("c", t.c, kernel.alignment_bytes);
}

DeviceArgument device_of(const GemmBf16Tensors& t) { return {"a", t.a.device}; }

GemmBf16Problem problem_of(const GemmBf16Tensors& t, const GemmBf16Options&) {
  return {.m = t.a.shape[0], .n = t.b.shape[0], .k = t.a.shape[1]};
}

GemmBf16Params params_of(const GemmBf16Tensors& t, const GemmBf16Options&,
                         const GemmBf16Problem& problem) {
  return {.m = static_cast<int>(problem.m),
          .n = static_cast<int>(problem.n),
          .k = static_cast<int>(problem.k),
          .a = t.a.data,
          .b = t.b.data,
          .c = t.c.data,
          .a_stride = stride_of(t.a, 0),
          .b_stride = stride_of(t.b, 0),
          .c_stride = stride_of(t.c, 0)};
}

void gemm_bf16(const GemmBf16Tensors& tensors, const GemmBf16Options& options, Stream stream) {
  prepare<GemmBf16>(tensors, options).launch({}, stream);
}

}  // namespace tilewright
