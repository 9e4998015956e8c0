// swizzle_scales and unswizzle_scales: a thread for each scale, padding included.
//
// Source    the layouts of tilewright/nvfp4.hpp.
// Tiles     none: scales have a 32nd of a BF16 matrix's bytes, and a warp's lie in few sectors.
// SMEM      none.
// Registers as many as the compiler takes; nothing depends on their number.
#include "cuda/common/launch.cuh"
#include "cuda/conversions/block_tiles.cuh"
#include "ops/convert_scales/params.hpp"

namespace tilewright::cuda {
namespace convert_scales {

// Converts rows x columns scales. If `to` is swizzled, these count its padding.
__global__ void __launch_bounds__(kBlockThreads)
    convert(const __grid_constant__ ConvertScalesParams p, int rows, int columns, int log2_lanes) {
  const BlockPosition first(log2_lanes);
  for (int column = first.column; column < columns; column += first.column_step) {
    for (int row = first.row; row < rows; row += first.row_step) {
      const bool is_scale = row < p.rows && column < p.blocks;
      p.to.at(row, column) = is_scale ? p.from.at(row, column) : 0;
    }
  }
}

}  // namespace convert_scales

void launch_convert_scales(const ConvertScalesParams& p, Stream stream) {
  constexpr int kMaxGrid = 1 << 12;
  int rows = p.rows;
  int columns = p.blocks;
  if (p.to.layout == ScaleLayout::swizzled) {
    const auto padded = swizzled_scale_shape(rows, columns);
    rows = static_cast<int>(padded[0]);
    columns = static_cast<int>(padded[1]);
  }
  const BlockTiles tiles(rows, columns, kMaxGrid);
  launch<convert_scales::convert>(tiles.grid, kBlockThreads, 0, stream, p, rows, columns,
                                  tiles.log2_lanes);
}

}  // namespace tilewright::cuda
