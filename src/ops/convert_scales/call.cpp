// The calls of swizzle_scales() and unswizzle_scales(): checked, a kernel selected and launched.
#include "ops/call.hpp"

#include "ops/convert_scales/params.hpp"
#include "ops/matrix_views.hpp"
#include "ops/nvfp4_checks.hpp"
#include "ops/overlap.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {
namespace {

// Checks both tensors, except what must hold of an output.
void check_conversion(const ConstTensorView& linear, const ConstTensorView& swizzled) {
  check_matrix("linear", linear);
  if (linear.dtype != DType::e8m0) {
    check_dtype("linear", linear, DType::e4m3, " or e8m0");
  }
  check_block_count("linear", linear.shape[0], linear.shape[1]);
  check_block_scales("swizzled", swizzled, ScaleLayout::swizzled, linear.shape[0], linear.shape[1],
                     linear, "linear");
  check_dtype("swizzled", swizzled, linear.dtype, ", the dtype of linear");
}

// Converts scales from one layout to the other. Rows and blocks are those of `linear`.
void convert(const ConstTensorView& from, ScaleLayout from_layout, const TensorView& to,
             ScaleLayout to_layout, const ConstTensorView& linear, Stream stream) {
  const ConvertScalesParams params{.from = block_scales<const std::uint8_t>(from, from_layout),
                                   .to = block_scales<std::uint8_t>(to, to_layout),
                                   .rows = static_cast<int>(linear.shape[0]),
                                   .blocks = static_cast<int>(linear.shape[1])};
  const auto selection =
      select_kernel<ConvertScales>("auto", {.dtype = linear.dtype}, linear.device, "linear");
  Call<ConvertScales>{selection, params, linear.device}.launch({}, stream);
}

}  // namespace

void swizzle_scales(const ConstTensorView& linear, const TensorView& swizzled, Stream stream) {
  check_conversion(linear, swizzled);
  check_is_apart("swizzled", swizzled, {{"linear", linear}});
  convert(linear, ScaleLayout::linear, swizzled, ScaleLayout::swizzled, linear, stream);
}

void unswizzle_scales(const ConstTensorView& swizzled, const TensorView& linear, Stream stream) {
  check_conversion(linear, swizzled);
  check_no_overlap("linear", linear);
  check_is_apart("linear", linear, {{"swizzled", swizzled}});
  convert(swizzled, ScaleLayout::swizzled, linear, ScaleLayout::linear, linear, stream);
}

}  // namespace tilewright
