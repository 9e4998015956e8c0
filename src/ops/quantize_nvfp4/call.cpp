// A call of quantize_nvfp4(): its checks, what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "common/nvfp4_recipe.hpp"
#include "ops/matrix_views.hpp"
#include "ops/nvfp4_checks.hpp"
#include "ops/overlap.hpp"
#include "ops/quantize_nvfp4/params.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {
namespace {

void check_either_global_scale(const QuantizeNvfp4Tensors& t) {
  if (t.global_scale && t.computed_global_scale) {
    fail("computed_global_scale", "is given, must be absent where global_scale is given");
  }
  if (!t.global_scale && !t.computed_global_scale) {
    fail("computed_global_scale", "is absent, must be given where global_scale is absent");
  }
  if (t.global_scale) {
    check_global_scale("global_scale", *t.global_scale, t.x.device, "x");
  } else {
    check_global_scale("computed_global_scale", *t.computed_global_scale, t.x.device, "x");
  }
}

void check_outputs_are_apart(const QuantizeNvfp4Tensors& t) {
  const OtherTensor x{"x", t.x};
  const OtherTensor given{"global_scale", t.global_scale};
  const OtherTensor computed{"computed_global_scale", t.computed_global_scale};
  check_is_apart("codes", t.codes, {x, given, {"scales", t.scales}, computed});
  check_is_apart("scales", t.scales, {x, given, computed});
  if (t.computed_global_scale) {
    check_is_apart("computed_global_scale", *t.computed_global_scale, {x});
  }
}

}  // namespace

void check_arguments(const QuantizeNvfp4Tensors& t, const QuantizeNvfp4Options& options) {
  check_matrix("x", t.x);
  check_is_float("x", t.x);
  check_columns_are_multiple("x", t.x.shape[1], nvfp4::kBlock, ", the block");
  const std::int64_t rows = t.x.shape[0];
  const std::int64_t blocks = t.x.shape[1] / nvfp4::kBlock;
  check_block_count("x", rows, blocks);

  check_matrix("codes", t.codes, t.x, "x");
  check_dtype("codes", t.codes, DType::e2m1x2);
  check_same("codes", "rows", t.codes.shape[0], "x's", rows);
  check_same("codes", "columns", t.codes.shape[1], "half of x's,", t.x.shape[1] / 2);
  check_no_overlap("codes", t.codes);

  check_block_scales("scales", t.scales, options.scale_layout, rows, blocks, t.x, "x");
  check_dtype("scales", t.scales, DType::e4m3);
  check_no_overlap("scales", t.scales);
  check_either_global_scale(t);
  check_outputs_are_apart(t);
  check_global_scale_kind("global_scale_kind", options.global_scale_kind);
}

void check_alignment(const QuantizeNvfp4Tensors& t, const KernelInfo& kernel) {
  check_values_are_aligned("x", t.x, kernel);
  check_codes_are_aligned("codes", t.codes, kernel);
}

DeviceArgument device_of(const QuantizeNvfp4Tensors& t) { return {"x", t.x.device}; }

QuantizeNvfp4Problem problem_of(const QuantizeNvfp4Tensors& t, const QuantizeNvfp4Options&) {
  return {.dtype = t.x.dtype, .computes_global_scale = t.computed_global_scale.has_value()};
}

QuantizeNvfp4Params params_of(const QuantizeNvfp4Tensors& t, const QuantizeNvfp4Options& options,
                              const QuantizeNvfp4Problem&) {
  return {.x = t.x.data,
          .dtype = t.x.dtype,
          .x_stride = stride_of(t.x, 0),
          .rows = static_cast<int>(t.x.shape[0]),
          .blocks = static_cast<int>(t.x.shape[1] / nvfp4::kBlock),
          .codes = static_cast<std::uint8_t*>(t.codes.data),
          .codes_stride = stride_of(t.codes, 0),
          .scales = block_scales<std::uint8_t>(t.scales, options.scale_layout),
          .scale_rows = static_cast<int>(t.scales.shape[0]),
          .scale_blocks = static_cast<int>(t.scales.shape[1]),
          .global_scale = data_of<const float>(t.global_scale),
          .computed_global_scale = data_of<float>(t.computed_global_scale),
          .global_scale_kind = *options.global_scale_kind,
          .multiprocessors = device_info(t.x.device).multiprocessors};
}

std::size_t quantize_nvfp4_workspace_bytes(const QuantizeNvfp4Tensors& tensors,
                                           const QuantizeNvfp4Options& options) {
  return prepare<QuantizeNvfp4>(tensors, options).workspace_bytes();
}

void quantize_nvfp4(const QuantizeNvfp4Tensors& tensors, const QuantizeNvfp4Options& options,
                    Workspace workspace, Stream stream) {
  prepare<QuantizeNvfp4>(tensors, options).launch(workspace, stream);
}

}  // namespace tilewright
