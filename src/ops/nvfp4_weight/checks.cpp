#include "ops/nvfp4_weight/checks.hpp"

#include <limits>
#include <string>

#include "common/nvfp4_weight_tile.hpp"
#include "ops/matrix_checks.hpp"
#include "ops/matrix_views.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

// A launch has a thread block for each tile.
void check_tile_count(const ConstTensorView& codes, std::int64_t scale_rows) {
  const std::int64_t tiles_of_one =
      weight_row_tiles(scale_rows) * weight_column_tiles(2 * columns_of(codes));
  if (batch_of(codes) > std::numeric_limits<int>::max() / tiles_of_one) {
    throw Error(ErrorCode::unsupported, "codes",
                "has " + std::to_string(batch_of(codes)) + " weights of " +
                    std::to_string(tiles_of_one) + " tiles, must have fewer than 2^31 in all");
  }
}

void check_weight(const ConstTensorView& codes, const ConstTensorView& scales,
                  ScaleLayout scale_layout, const ConstTensorView& packed) {
  check_first_matrix("codes", codes);
  check_dtype("codes", codes, DType::e2m1x2);
  check_columns_are_multiple("codes", columns_of(codes), nvfp4::kBlock / 2, ", a block of NVFP4");
  const std::int64_t columns = 2 * columns_of(codes);
  check_block_scales("scales", scales, scale_layout, rows_of(codes), columns / nvfp4::kBlock, codes,
                     "codes");
  check_dtype("scales", scales, DType::e4m3);
  check_packed_weight("packed", packed, rows_of(codes), columns, codes, "codes");
  check_tile_count(codes, rows_of(scales));
}

}  // namespace

void check_arguments(const PrepackNvfp4WeightTensors& t, ScaleLayout scale_layout) {
  check_weight(t.codes, t.scales, scale_layout, t.packed);
  check_no_overlap("packed", t.packed);
  check_is_apart("packed", t.packed, {{"codes", t.codes}, {"scales", t.scales}});
}

void check_arguments(const UnpackNvfp4WeightTensors& t, ScaleLayout scale_layout) {
  check_weight(t.codes, t.scales, scale_layout, t.packed);
  check_no_overlap("codes", t.codes);
  check_no_overlap("scales", t.scales);
  check_is_apart("codes", t.codes, {{"packed", t.packed}, {"scales", t.scales}});
  check_is_apart("scales", t.scales, {{"packed", t.packed}});
}

}  // namespace tilewright
