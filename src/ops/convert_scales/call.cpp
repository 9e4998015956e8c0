// The calls of swizzle_scales() and unswizzle_scales(): their checks, and how kernels receive them.
#include "ops/call.hpp"

#include "ops/convert_scales/params.hpp"
#include "ops/matrix_views.hpp"
#include "ops/nvfp4_checks.hpp"
#include "ops/overlap.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {

// The scales `from` become `to`, which has the layout that is the call's option.
struct ConvertScalesTensors {
  ConstTensorView from;
  TensorView to;

  ConstTensorView linear(ScaleLayout layout) const {
    return layout == ScaleLayout::linear ? to : from;
  }
};

void check_arguments(const ConvertScalesTensors& t, ScaleLayout layout) {
  const bool is_swizzled = layout == ScaleLayout::swizzled;
  const ConstTensorView linear = t.linear(layout);
  const ConstTensorView swizzled = is_swizzled ? t.to : t.from;
  check_matrix("linear", linear);
  if (linear.dtype != DType::e8m0) {
    check_dtype("linear", linear, DType::e4m3, " or e8m0");
  }
  check_block_count("linear", linear.shape[0], linear.shape[1]);
  check_block_scales("swizzled", swizzled, ScaleLayout::swizzled, linear.shape[0], linear.shape[1],
                     linear, "linear");
  check_dtype("swizzled", swizzled, linear.dtype, ", the dtype of linear");

  const char* const from = is_swizzled ? "linear" : "swizzled";
  const char* const to = is_swizzled ? "swizzled" : "linear";
  check_no_overlap(to, t.to);
  check_is_apart(to, t.to, {{from, t.from}});
}

void check_alignment(const ConvertScalesTensors&, const KernelInfo&) {}

DeviceArgument device_of(const ConvertScalesTensors& t) { return {"linear", t.from.device}; }

ConversionProblem problem_of(const ConvertScalesTensors& t, ScaleLayout) {
  return {.dtype = t.from.dtype};
}

ConvertScalesParams params_of(const ConvertScalesTensors& t, ScaleLayout layout,
                              const ConversionProblem&) {
  const bool is_swizzled = layout == ScaleLayout::swizzled;
  const ConstTensorView linear = t.linear(layout);
  return {.from = block_scales<const std::uint8_t>(
              t.from, is_swizzled ? ScaleLayout::linear : ScaleLayout::swizzled),
          .to = block_scales<std::uint8_t>(t.to, layout),
          .rows = static_cast<int>(linear.shape[0]),
          .blocks = static_cast<int>(linear.shape[1])};
}

void swizzle_scales(const ConstTensorView& linear, const TensorView& swizzled, Stream stream) {
  prepare<ConvertScales>({.from = linear, .to = swizzled}, ScaleLayout::swizzled)
      .launch({}, stream);
}

void unswizzle_scales(const ConstTensorView& swizzled, const TensorView& linear, Stream stream) {
  prepare<ConvertScales>({.from = swizzled, .to = linear}, ScaleLayout::linear).launch({}, stream);
}

}  // namespace tilewright
