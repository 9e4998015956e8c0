#include "gemm_checks.hpp"

#include <array>
#include <optional>

#include "common/nvfp4_recipe.hpp"

namespace tilewright {
namespace {

constexpr std::array kBatched = {"batch", "rows", "columns"};
constexpr DimNames kSingle = DimNames(kBatched).last<2>();
constexpr std::array kBatchedVector = {"batch", "rows"};
constexpr DimNames kVector = DimNames(kBatchedVector).last<1>();

std::int64_t rows_of(const ConstTensorView& matrix) { return matrix.shape[matrix.rank - 2]; }
std::int64_t columns_of(const ConstTensorView& matrix) { return matrix.shape[matrix.rank - 1]; }
bool is_batched(const GemmNvfp4Tensors& t) { return t.a.rank == 3; }
bool is_nvfp4(const ConstTensorView& a) { return a.dtype == DType::e2m1x2; }

std::int64_t k_of(const GemmNvfp4Tensors& t) {
  return is_nvfp4(t.a) ? 2 * columns_of(t.a) : columns_of(t.a);
}

// The rank, the batch, the device and the contiguous dimension of a matrix: those of a.
void check_matrix(const char* argument, const ConstTensorView& matrix, const GemmNvfp4Tensors& t) {
  check_tensor(argument, matrix, is_batched(t) ? DimNames(kBatched) : kSingle, ", as a");
  if (is_batched(t)) {
    check_same(argument, "batch", matrix.shape[0], "a's", t.a.shape[0]);
  }
  check_device(argument, matrix, t.a.device, "a");
  check_last_dim_is_contiguous(argument, matrix, "must be");
}

void check_a(const GemmNvfp4Tensors& t) {
  if (t.a.rank == 2) {
    check_tensor("a", t.a, kSingle);
  } else {
    check_tensor("a", t.a, kBatched, ", or 2 without the batch");
  }
  if (t.a.dtype != DType::bf16 && t.a.dtype != DType::fp16 && !is_nvfp4(t.a)) {
    fail("a",
         "has dtype " + std::string(name(t.a.dtype)) + ", must be bf16, fp16, or e2m1x2 of NVFP4");
  }
  check_last_dim_is_contiguous("a", t.a, "must be");
  const int multiple = is_nvfp4(t.a) ? nvfp4::kBlock / 2 : nvfp4::kBlock;
  if (columns_of(t.a) % multiple != 0) {
    fail("a", "has " + std::to_string(columns_of(t.a)) + " columns, must have a multiple of " +
                  std::to_string(multiple) + ", a block of NVFP4");
  }
}

// The scales of an operand of `rows` rows.
void check_scales(const char* argument, const ConstTensorView& scales, ScaleLayout layout,
                  std::int64_t rows, const GemmNvfp4Tensors& t) {
  const std::int64_t blocks = k_of(t) / nvfp4::kBlock;
  check_matrix(argument, scales, t);
  check_dtype(argument, scales, DType::e4m3);
  if (layout == ScaleLayout::linear) {
    check_same(argument, "rows", rows_of(scales), "the operand's", rows);
    check_same(argument, "columns", columns_of(scales), "K / 16,", blocks);
    return;
  }
  const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
  check_same(argument, "rows", rows_of(scales), "the operand's up to a multiple of 128,",
             padded_rows);
  check_same(argument, "columns", columns_of(scales), "K / 16 up to a multiple of 4,",
             padded_blocks);
  const std::int64_t row_stride = scales.stride[scales.rank - 2];
  if (row_stride != padded_blocks) {
    fail(argument, "has a row stride of " + std::to_string(row_stride) +
                       ", swizzled scales must be contiguous (stride " +
                       std::to_string(padded_blocks) + ")");
  }
}

// (1), or one for each row of `like`, a matrix of as many rows.
void check_global_scale(const char* argument, const std::optional<ConstTensorView>& scale,
                        const ConstTensorView& like, const char* like_name,
                        const GemmNvfp4Tensors& t) {
  if (!scale) {
    return;
  }
  const bool is_single = scale->rank == 1 && scale->shape[0] == 1;
  if (!is_single) {
    check_tensor(argument, *scale, is_batched(t) ? DimNames(kBatchedVector) : kVector,
                 ", or size 1");
    const std::string of = std::string(like_name) + "'s";
    if (is_batched(t)) {
      check_same(argument, "batch", scale->shape[0], "a's", t.a.shape[0]);
    }
    check_same(argument, "size", scale->shape[scale->rank - 1], "1, or the rows of " + of,
               rows_of(like));
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
  check_global_scale("global_scale_a", t.global_scale_a, t.a, "a", t);
}

void check_b(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  check_matrix("b", t.b, t);
  check_dtype("b", t.b, DType::e2m1x2);
  check_same("b", "columns", columns_of(t.b), "half of K,", k_of(t) / 2);
  check_scales("sfb", t.sfb, options.sfb_layout, rows_of(t.b), t);
  check_global_scale("global_scale_b", t.global_scale_b, t.b, "b", t);
}

// c, or what is added to it.
void check_result(const char* argument, const ConstTensorView& matrix, const GemmNvfp4Tensors& t) {
  check_matrix(argument, matrix, t);
  check_same(argument, "rows", rows_of(matrix), "a's", rows_of(t.a));
  check_same(argument, "columns", columns_of(matrix), "b's rows,", rows_of(t.b));
}

void check_c(const GemmNvfp4Tensors& t) {
  check_result("c", t.c, t);
  if (t.c.dtype != DType::bf16 && t.c.dtype != DType::fp16 && t.c.dtype != DType::fp32) {
    fail("c", "has dtype " + std::string(name(t.c.dtype)) + ", must be bf16, fp16 or fp32");
  }
  check_no_overlap("c", t.c);
  if (t.residual) {
    check_result("residual", *t.residual, t);
    check_dtype("residual", *t.residual, t.c.dtype, ", the dtype of c");
  }
  if (t.bias) {
    check_tensor("bias", *t.bias, kVector);
    check_dtype("bias", *t.bias, t.c.dtype, ", the dtype of c");
    check_device("bias", *t.bias, t.a.device, "a");
    check_same("bias", "size", t.bias->shape[0], "b's rows,", rows_of(t.b));
    check_is_aligned("bias", t.bias->data, static_cast<int>(size_bytes(t.bias->dtype)));
  }
}

}  // namespace

void check_arguments(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  check_a(t);
  check_a_scales(t, options);
  check_b(t, options);
  check_c(t);
}

void check_alignment(const GemmNvfp4Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("a", t.a, kernel.alignment_bytes);
  check_rows_are_aligned("b", t.b, kernel.alignment_bytes);
  check_rows_are_aligned("c", t.c, kernel.alignment_bytes);
  if (t.residual) {
    check_rows_are_aligned("residual", *t.residual, kernel.alignment_bytes);
  }
}

GemmProblem problem_of(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  return {.a_dtype = t.a.dtype,
          .c_dtype = t.c.dtype,
          .m = rows_of(t.a),
          .n = rows_of(t.b),
          .k = k_of(t),
          .l = is_batched(t) ? t.a.shape[0] : 1,
          .batch_invariant = options.batch_invariant};
}

void check_arguments(const GemmBf16Tensors& t) {
  const auto check = [&](const char* argument, const ConstTensorView& matrix) {
    check_tensor(argument, matrix, kSingle);
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
}

void check_alignment(const GemmBf16Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("a", t.a, kernel.alignment_bytes);
  check_rows_are_aligned("b", t.b, kernel.alignment_bytes);
  check_rows_are_aligned("c", t.c, kernel.alignment_bytes);
}

GemmProblem problem_of(const GemmBf16Tensors& t) {
  return {.m = t.a.shape[0], .n = t.b.shape[0], .k = t.a.shape[1]};
}

}  // namespace tilewright
