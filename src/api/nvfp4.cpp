// The calls of tilewright/nvfp4.hpp: checked, and sent to the tensors' device.
#include "tilewright/nvfp4.hpp"

#include "common/nvfp4_recipe.hpp"
#include "cpu/cpu_nvfp4.hpp"
#include "cuda/cuda_backend.hpp"
#include "matrix_views.hpp"
#include "nvfp4_checks.hpp"
#include "nvfp4_params.hpp"
#include "overlap.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

template <typename T, typename View>
T* data_of(const std::optional<View>& tensor) {
  return tensor ? static_cast<T*>(tensor->data) : nullptr;
}

QuantizeNvfp4Params params_of(const QuantizeNvfp4Tensors& t, const QuantizeNvfp4Options& options,
                              Workspace workspace) {
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
          .workspace = static_cast<std::uint32_t*>(workspace.data),
          .multiprocessors = device_info(t.x.device).multiprocessors};
}

DequantizeNvfp4Params params_of(const DequantizeNvfp4Tensors& t,
                                const DequantizeNvfp4Options& options) {
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

std::size_t needed_bytes(const QuantizeNvfp4Tensors& t) {
  const bool is_needed = t.computed_global_scale && t.x.device.kind == DeviceKind::cuda;
  return is_needed ? kMaxPartials * sizeof(std::uint32_t) : 0;
}

// From one layout to the other, of the tensor `linear`'s rows and blocks.
void convert(const ConstTensorView& from, ScaleLayout from_layout, const TensorView& to,
             ScaleLayout to_layout, const ConstTensorView& linear, Stream stream) {
  const ConvertScalesParams params{.from = block_scales<const std::uint8_t>(from, from_layout),
                                   .to = block_scales<std::uint8_t>(to, to_layout),
                                   .rows = static_cast<int>(linear.shape[0]),
                                   .blocks = static_cast<int>(linear.shape[1])};
  if (linear.device.kind == DeviceKind::cpu) {
    cpu::convert_scales(params);
  } else {
    cuda::run_convert_scales(params, linear.device.index, stream);
  }
}

}  // namespace

std::size_t quantize_nvfp4_workspace_bytes(const QuantizeNvfp4Tensors& tensors,
                                           const QuantizeNvfp4Options& options) {
  check_arguments(tensors, options);
  return needed_bytes(tensors);
}

void quantize_nvfp4(const QuantizeNvfp4Tensors& tensors, const QuantizeNvfp4Options& options,
                    Workspace workspace, Stream stream) {
  check_arguments(tensors, options);
  check_workspace(workspace, needed_bytes(tensors), "quantize_nvfp4");
  const QuantizeNvfp4Params params = params_of(tensors, options, workspace);
  if (tensors.x.device.kind == DeviceKind::cpu) {
    cpu::quantize_nvfp4(params);
  } else {
    cuda::run_quantize_nvfp4(params, tensors.x.device.index, stream);
  }
}

void dequantize_nvfp4(const DequantizeNvfp4Tensors& tensors, const DequantizeNvfp4Options& options,
                      Stream stream) {
  check_arguments(tensors, options);
  const DequantizeNvfp4Params params = params_of(tensors, options);
  if (tensors.codes.device.kind == DeviceKind::cpu) {
    cpu::dequantize_nvfp4(params);
  } else {
    cuda::run_dequantize_nvfp4(params, tensors.codes.device.index, stream);
  }
}

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
