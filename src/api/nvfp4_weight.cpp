// The calls of tilewright/nvfp4_weight.hpp: checked, and sent to the tensors' device.
#include "tilewright/nvfp4_weight.hpp"

#include "cpu/cpu_nvfp4.hpp"
#include "cuda/cuda_backend.hpp"
#include "matrix_views.hpp"
#include "nvfp4_params.hpp"
#include "nvfp4_weight_checks.hpp"

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

void prepack_nvfp4_weight(const PrepackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                          Stream stream) {
  check_arguments(t, scale_layout);
  const PrepackWeightParams params{
      .weight = unpacked_weight<const std::uint8_t>(t.codes, t.scales, scale_layout),
      .packed = static_cast<std::uint8_t*>(t.packed.data),
      .packed_batch_stride = matrix_strides(t.packed).batch};
  if (t.codes.device.kind == DeviceKind::cpu) {
    cpu::prepack_nvfp4_weight(params);
  } else {
    cuda::run_prepack_nvfp4_weight(params, t.codes.device.index, stream);
  }
}

void unpack_nvfp4_weight(const UnpackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                         Stream stream) {
  check_arguments(t, scale_layout);
  const UnpackWeightParams params{
      .packed = static_cast<const std::uint8_t*>(t.packed.data),
      .packed_batch_stride = matrix_strides(t.packed).batch,
      .weight = unpacked_weight<std::uint8_t>(t.codes, t.scales, scale_layout)};
  if (t.codes.device.kind == DeviceKind::cpu) {
    cpu::unpack_nvfp4_weight(params);
  } else {
    cuda::run_unpack_nvfp4_weight(params, t.codes.device.index, stream);
  }
}

}  // namespace tilewright
