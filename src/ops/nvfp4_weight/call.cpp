// The calls of tilewright/nvfp4_weight.hpp: checked, a kernel selected and launched.
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

void prepack_nvfp4_weight(const PrepackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                          Stream stream) {
  check_arguments(t, scale_layout);
  const PrepackWeightParams params{
      .weight = unpacked_weight<const std::uint8_t>(t.codes, t.scales, scale_layout),
      .packed = static_cast<std::uint8_t*>(t.packed.data),
      .packed_batch_stride = matrix_strides(t.packed).batch};
  const auto selection =
      select_kernel<PrepackNvfp4Weight>("auto", {.dtype = t.codes.dtype}, t.codes.device, "codes");
  check_rows_are_aligned("packed", t.packed, selection.kernel->info.alignment_bytes);
  Call<PrepackNvfp4Weight>{selection, params, t.codes.device}.launch({}, stream);
}

void unpack_nvfp4_weight(const UnpackNvfp4WeightTensors& t, ScaleLayout scale_layout,
                         Stream stream) {
  check_arguments(t, scale_layout);
  const UnpackWeightParams params{
      .packed = static_cast<const std::uint8_t*>(t.packed.data),
      .packed_batch_stride = matrix_strides(t.packed).batch,
      .weight = unpacked_weight<std::uint8_t>(t.codes, t.scales, scale_layout)};
  const auto selection =
      select_kernel<UnpackNvfp4Weight>("auto", {.dtype = t.codes.dtype}, t.codes.device, "codes");
  check_rows_are_aligned("packed", t.packed, selection.kernel->info.alignment_bytes);
  Call<UnpackNvfp4Weight>{selection, params, t.codes.device}.launch({}, stream);
}

}  // namespace tilewright
