// A call of dequantize_nvfp4(): its checks, what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "common/nvfp4_recipe.hpp"
#include "ops/dequantize_nvfp4/params.hpp"
#include "ops/matrix_views.hpp"
#include "ops/nvfp4_checks.hpp"
#include "ops/overlap.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {

void check_arguments(const DequantizeNvfp4Tensors& t, const DequantizeNvfp4Options& options) {
  check_matrix("codes", t.codes);
  check_dtype("codes", t.codes, DType::e2m1x2);
  const bool is_mxfp4 = t.scales.dtype == DType::e8m0;
  if (!is_mxfp4) {
    check_dtype("scales", t.scales, DType::e4m3, ", or e8m0 of MXFP4");
  }
  const int block_bytes = (is_mxfp4 ? nvfp4::kMxBlock : nvfp4::kBlock) / 2;
  check_columns_are_multiple("codes", t.codes.shape[1], block_bytes, ", the bytes of a block");
  const std::int64_t rows = t.codes.shape[0];
  const std::int64_t blocks = t.codes.shape[1] / block_bytes;
  check_block_count("codes", rows, blocks);
  check_block_scales("scales", t.scales, options.scale_layout, rows, blocks, t.codes, "codes");

  check_matrix("out", t.out, t.codes, "codes");
  check_is_float("out", t.out);
  check_same("out", "rows", t.out.shape[0], "codes'", rows);
  check_same("out", "columns", t.out.shape[1], "twice codes',", 2 * t.codes.shape[1]);
  check_no_overlap("out", t.out);
  if (t.global_scale) {
    if (is_mxfp4) {
      fail("global_scale", "is given, must be absent: MXFP4 has none");
    }
    check_global_scale("global_scale", *t.global_scale, t.codes.device, "codes");
    check_global_scale_kind("global_scale_kind", options.global_scale_kind);
  }
  check_is_apart("out", t.out,
                 {{"codes", t.codes}, {"scales", t.scales}, {"global_scale", t.global_scale}});
}

void check_alignment(const DequantizeNvfp4Tensors& t, const KernelInfo& kernel) {
  check_codes_are_aligned("codes", t.codes, kernel);
  check_values_are_aligned("out", t.out, kernel);
}

DeviceArgument device_of(const DequantizeNvfp4Tensors& t) { return {"codes", t.codes.device}; }

ConversionProblem problem_of(const DequantizeNvfp4Tensors& t, const DequantizeNvfp4Options&) {
  return {.dtype = t.out.dtype};
}

DequantizeNvfp4Params params_of(const DequantizeNvfp4Tensors& t,
                                const DequantizeNvfp4Options& options, const ConversionProblem&) {
  const bool is_mxfp4 = t.scales.dtype == DType::e8m0;
  return {.codes = static_cast<const std::uint8_t*>(t.codes.data),
          .codes_stride = stride_of(t.codes, 0),
          .scales = block_scales<const std::uint8_t>(t.scales, options.scale_layout),
          .is_mxfp4 = is_mxfp4,
          .rows = static_cast<int>(t.out.shape[0]),
          .blocks = static_cast<int>(t.out.shape[1] / (is_mxfp4 ? nvfp4::kMxBlock : nvfp4::kBlock)),
          .out = t.out.data,
          .dtype = t.out.dtype,
          .out_stride = stride_of(t.out, 0),
          .global_scale = data_of<const float>(t.global_scale),
          .global_scale_kind = options.global_scale_kind.value_or(GlobalScale::encode)};
}

void dequantize_nvfp4(const DequantizeNvfp4Tensors& tensors, const DequantizeNvfp4Options& options,
                      Stream stream) {
  prepare<DequantizeNvfp4>(tensors, options).launch({}, stream);
}

}  // namespace tilewright
