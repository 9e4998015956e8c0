#include "ops/gemm_nvfp4/checks.hpp"

#include <array>
#include <optional>

#include "common/nvfp4_recipe.hpp"
#include "ops/matrix_checks.hpp"
#include "ops/matrix_views.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

constexpr std::array kBatchedVector = {"batch", "rows"};
constexpr DimNames kVector = DimNames(kBatchedVector).last<1>();

bool is_nvfp4(const ConstTensorView& a) { return a.dtype == DType::e2m1x2; }

bool is_packed(const ConstTensorView& b) { return b.dtype == DType::u8; }

std::int64_t n_of(const GemmNvfp4Tensors& t) {
  return is_packed(t.b) ? columns_of(t.c) : rows_of(t.b);
}

std::int64_t k_of(const GemmNvfp4Tensors& t) {
  return is_nvfp4(t.a) ? 2 * columns_of(t.a) : columns_of(t.a);
}

void check_matrix(const char* argument, const ConstTensorView& matrix, const GemmNvfp4Tensors& t) {
  check_matrix(argument, matrix, t.a, "a");
}

void check_a(const GemmNvfp4Tensors& t) {
  check_first_matrix("a", t.a);
  if (t.a.dtype != DType::bf16 && t.a.dtype != DType::fp16 && !is_nvfp4(t.a)) {
    fail("a",
         "has dtype " + std::string(name(t.a.dtype)) + ", must be bf16, fp16, or e2m1x2 of NVFP4");
  }
  check_columns_are_multiple("a", columns_of(t.a),
                             is_nvfp4(t.a) ? nvfp4::kBlock / 2 : nvfp4::kBlock,
                             ", a block of NVFP4");
}

// Checks the scales of an operand of `rows` rows.
void check_scales(const char* argument, const ConstTensorView& scales, ScaleLayout layout,
                  std::int64_t rows, const GemmNvfp4Tensors& t) {
  check_block_scales(argument, scales, layout, rows, k_of(t) / nvfp4::kBlock, t.a, "a");
  check_dtype(argument, scales, DType::e4m3);
}

// Checks a global scale: (1), or one for each of an operand's rows.
void check_global_scale(const char* argument, const std::optional<ConstTensorView>& scale,
                        const char* kind_argument, std::optional<GlobalScale> kind,
                        const char* operand, std::int64_t rows, const GemmNvfp4Tensors& t) {
  if (!scale) {
    return;
  }
  check_global_scale_kind(kind_argument, kind);
  const bool is_single = scale->rank == 1 && scale->shape[0] == 1;
  if (!is_single) {
    check_tensor(argument, *scale, is_batched(t.a) ? DimNames(kBatchedVector) : kVector,
                 {", or size 1"});
    if (is_batched(t.a)) {
      check_same(argument, "batch", scale->shape[0], "a's", t.a.shape[0]);
    }
    check_same(argument, "size", scale->shape[scale->rank - 1],
               {"1, or the rows of ", operand, "'s"}, rows);
  } else {
    check_tensor(argument, *scale, kVector);
  }
  check_dtype(argument, *scale, DType::fp32);
  check_device(argument, *scale, t.a.device, "a");
  check_is_aligned(argument, scale->data, static_cast<int>(size_bytes(DType::fp32)));
}

void check_a_scales(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  if (is_nvfp4(t.a)) {
    if (!t.sfa) {
      fail("sfa", "is absent, must be given where a is NVFP4");
    }
    check_scales("sfa", *t.sfa, options.sfa_layout, rows_of(t.a), t);
  } else if (t.sfa) {
    fail("sfa", "is given, must be absent where a is " + std::string(name(t.a.dtype)));
  } else if (t.global_scale_a) {
    fail("global_scale_a", "is given, must be absent where a is " + std::string(name(t.a.dtype)));
  }
  check_global_scale("global_scale_a", t.global_scale_a, "global_scale_a_kind",
                     options.global_scale_a_kind, "a", rows_of(t.a), t);
}

void check_codes_of_b(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  check_matrix("b", t.b, t);
  check_dtype("b", t.b, DType::e2m1x2, ", or u8 of prepack_nvfp4_weight()");
  check_same("b", "columns", columns_of(t.b), "half of K,", k_of(t) / 2);
  if (!t.sfb) {
    fail("sfb", "is absent, must be given where b is codes");
  }
  check_scales("sfb", *t.sfb, options.sfb_layout, rows_of(t.b), t);
}

// Checks packed weights. They do not tell their number of rows, which is c's columns.
void check_packed_b(const GemmNvfp4Tensors& t) {
  check_matrix("c", t.c, t);
  check_packed_weight("b", t.b, n_of(t), k_of(t), t.a, "a");
  if (t.sfb) {
    fail("sfb", "is given, must be absent where b is packed: the scales are in it");
  }
}

void check_b(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  if (is_packed(t.b)) {
    check_packed_b(t);
  } else {
    check_codes_of_b(t, options);
  }
  check_global_scale("global_scale_b", t.global_scale_b, "global_scale_b_kind",
                     options.global_scale_b_kind, "b", n_of(t), t);
}

// Checks c or the residual.
void check_result(const char* argument, const ConstTensorView& matrix, const GemmNvfp4Tensors& t) {
  check_matrix(argument, matrix, t);
  check_same(argument, "rows", rows_of(matrix), "a's", rows_of(t.a));
  check_same(argument, "columns", columns_of(matrix), "b's rows,", n_of(t));
}

// Do two matrices of one shape and dtype have the same elements at the same addresses?
bool is_same(const ConstTensorView& x, const ConstTensorView& y) {
  const MatrixStrides of_x = matrix_strides(x);
  const MatrixStrides of_y = matrix_strides(y);
  return x.data == y.data && of_x.batch == of_y.batch && of_x.row == of_y.row;
}

void check_inputs_are_apart(const GemmNvfp4Tensors& t) {
  check_is_apart("c", t.c,
                 {{"a", t.a},
                  {"b", t.b},
                  {"sfa", t.sfa},
                  {"sfb", t.sfb},
                  {"global_scale_a", t.global_scale_a},
                  {"global_scale_b", t.global_scale_b},
                  {"bias", t.bias}});
  if (t.residual && !is_same(t.c, *t.residual)) {
    check_is_apart("c", t.c, {{"residual", t.residual}}, ", but for a residual that is the result");
  }
}

void check_c(const GemmNvfp4Tensors& t) {
  check_result("c", t.c, t);
  if (t.c.dtype != DType::bf16 && t.c.dtype != DType::fp16 && t.c.dtype != DType::fp32) {
    fail("c", "has dtype " + std::string(name(t.c.dtype)) + ", must be bf16, fp16 or fp32");
  }
  check_no_overlap("c", t.c);
  if (t.residual) {
    check_result("residual", *t.residual, t);
    check_dtype("residual", *t.residual, t.c.dtype, ", the dtype of the result");
  }
  if (t.bias) {
    check_tensor("bias", *t.bias, kVector);
    check_dtype("bias", *t.bias, t.c.dtype, ", the dtype of the result");
    check_device("bias", *t.bias, t.a.device, "a");
    check_same("bias", "size", t.bias->shape[0], "b's rows,", n_of(t));
    check_is_aligned("bias", t.bias->data, static_cast<int>(size_bytes(t.bias->dtype)));
  }
}

}  // namespace

void check_arguments(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  check_a(t);
  check_a_scales(t, options);
  check_b(t, options);
  check_c(t);
  check_inputs_are_apart(t);
}

void check_alignment(const GemmNvfp4Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("a", t.a, kernel.alignment_bytes);
  check_rows_are_aligned("b", t.b, kernel.alignment_bytes);
  check_rows_are_aligned("c", t.c, kernel.alignment_bytes);
  if (t.residual) {
    check_rows_are_aligned("residual", *t.residual, kernel.alignment_bytes);
  }
}

GemmNvfp4Problem problem_of(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  return {.a_dtype = t.a.dtype,
          .c_dtype = t.c.dtype,
          .m = rows_of(t.a),
          .n = n_of(t),
          .k = k_of(t),
          .l = batch_of(t.a),
          .b_is_packed = is_packed(t.b),
          .batch_invariant = options.batch_invariant};
}

}  // namespace tilewright
