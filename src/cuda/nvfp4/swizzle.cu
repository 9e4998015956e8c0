// swizzle_scales and unswizzle_scales: one thread per scale, padding included.
//
// Source    the layouts of tilewright/nvfp4.hpp.
// Tiles     none: scales are a 32nd of a BF16 matrix's bytes, and a warp's lie in few sectors.
// SMEM      none.
// Registers whatever the compiler takes; nothing depends on them.
#include "cuda/common/launch.cuh"
#include "cuda/nvfp4/block_walk.cuh"
#include "cuda/nvfp4/launchers.hpp"

namespace tilewright::cuda {
namespace convert_scales {

constexpr int kThreads = 256;

// Walks rows x columns, the padded ones where that is what is written.
__global__ void __launch_bounds__(kThreads)
    convert(const __grid_constant__ ConvertScalesParams p, int rows, int columns) {
  for (BlockWalk at(rows, columns); at.is_inside(); at.step()) {
    const bool is_scale = at.row < p.rows && at.column < p.blocks;
    p.to.at(at.row, at.column) = is_scale ? p.from.at(at.row, at.column) : 0;
  }
}

}  // namespace convert_scales

void launch_convert_scales(const ConvertScalesParams& p, Stream stream) {
  constexpr int kMaxGrid = 1 << 16;
  int rows = p.rows;
  int columns = p.blocks;
  if (p.to.layout == ScaleLayout::swizzled) {
    const auto padded = swizzled_scale_shape(rows, columns);
    rows = static_cast<int>(padded[0]);
    columns = static_cast<int>(padded[1]);
  }
  const unsigned grid =
      walking_blocks(std::int64_t{rows} * columns, convert_scales::kThreads, kMaxGrid);
  launch<convert_scales::convert>(grid, convert_scales::kThreads, 0, stream, p, rows, columns);
}

}  // namespace tilewright::cuda
