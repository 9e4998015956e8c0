// The calls of tilewright/nvfp4_weight.hpp: what they ask for, and how kernels receive them.
#include "ops/call.hpp"

#include "common/nvfp4_recipe.hpp"
#include "ops/matrix_views.hpp"
#include "ops/nvfp4_weight/checks.hpp"
#include "ops/nvfp4_weight/params.hpp"
#include "tilewright/nvfp4_kernels.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright {
namespace {

template <typename Byte, typename View>
UnpackedWeight<Byte> unpacked_weight(const View& codes, const View& scales, ScaleLayout layout) {
  const MatrixStrides codes_stride = matrix_strides(codes);
  return {.codes = static_cast<Byte*>(codes.data),
          .codes_stride = codes_stride.row,
          .codes_batch_stride = codes_stride.batch,
          .scales = block_scales<Byte>(scales, layout),
          .scales_batch_stride = matrix_strides(scales).batch,
          .batch = static_cast<int>(batch_of(codes)),
          .rows = static_cast<int>(rows_of(codes)),
          .blocks = static_cast<int>(2 * columns_of(codes) / nvfp4::kBlock),
          .scale_rows = static_cast<int>(rows_of(scales)),
          .scale_blocks = static_cast<int>(columns_of(scales))};
}

}  // namespace

// Both calls have codes, scales and a packed weight.
template <class Tensors>
void check_alignment(const Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("packed", t.packed, kernel.alignment_bytes);
}

template <class Tensors>
DeviceArgument device_of(const Tensors& t) {
  return {"codes", t.codes.device};
}

template <class Tensors>
ConversionProblem problem_of(const Tensors& t, ScaleLayout) {
  return {.dtype = t.codes.dtype};
}

PrepackWeightParams params_of(const PrepackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                              const ConversionProblem&) {
  return {.weight = unpacked_weight<const std::uint8_t>(t.codes, t.scales, scale_layout),
          .packed = static_cast<std::uint8_t*>(t.packed.data),
          .packed_batch_stride = matrix_strides(t.packed).batch};
}

UnpackWeightParams params_of(const UnpackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                             const ConversionProblem&) {
  return {.packed = static_cast<const std::uint8_t*>(t.packed.data),
          .packed_batch_stride = matrix_strides(t.packed).batch,
          .weight = unpacked_weight<std::uint8_t>(t.codes, t.scales, scale_layout)};
}

void prepack_nvfp4_weight(const PrepackNvfp4WeightTensors& tensors, ScaleLayout scale_layout,
                          Stream stream) {
  prepare<PrepackNvfp4Weight>(tensors, scale_layout).launch({}, stream);
}

void unpack_nvfp4_weight(const UnpackNvfp4WeightTensors& tensors, ScaleLayout scale_layout,
                         Stream stream) {
  prepare<UnpackNvfp4Weight>(tensors, scale_layout).launch({}, stream);
}

}  // namespace tilewright
