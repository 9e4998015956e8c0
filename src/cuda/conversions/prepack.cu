// prepack_nvfp4_weight and unpack_nvfp4_weight: a thread block takes a tile, and a thread takes the
// 16 bytes of codes that a thread of the GEMM reads of it.
//
//   prepack   load 16 bytes of codes, 8 scales | if a scale is negative, flip its codes' signs; if
//             it is zero, set its codes' magnitudes to zero | store 4 words of codes and, every
//             fourth thread, 2 words of scales
//   unpack    the reverse; thread blocks beyond the weight's rows write the padding of its scales
//
// Source    common/nvfp4_weight_layout.hpp has the layout, common/nvfp4_weight_tile.hpp a thread's
//           share of it, which the CPU kernel uses, too.
// Tiles     64 x 64. A warp reads or writes 16 rows of 32 bytes of codes, in whole sectors, and 512
//           neighbouring bytes of the tile.
// SMEM      none.
// Registers as many as the compiler takes; nothing depends on their number.
// Limits    Packed weights are aligned to 16 bytes. A weight is packed once, when it is loaded.
#include <type_traits>

#include "cuda/common/launch.cuh"
#include "ops/nvfp4_weight/kernels.hpp"

namespace tilewright::cuda {
namespace prepack_nvfp4 {

__device__ bool owns_scales() { return threadIdx.x % kScaleThreads == 0; }

template <typename Byte>
__device__ auto* scales_of(Byte* packed) {
  using Vector = std::conditional_t<std::is_const_v<Byte>, const uint2, uint2>;
  return reinterpret_cast<Vector*>(packed + WeightTile::kCode_bytes) + threadIdx.x / kScaleThreads;
}

__global__ void __launch_bounds__(WeightTile::kThreads)
    prepack(const __grid_constant__ PrepackWeightParams p, const WeightTiles tiles) {
  const WeightTileOrigin tile = tiles.origin(blockIdx.x);
  const UnpackedWeight<const std::uint8_t> weight = p.weight.skip(tile.weight);
  std::uint8_t* const packed = p.packed + tile.weight * p.packed_batch_stride + tiles.offset(tile);
  const int thread = static_cast<int>(threadIdx.x);
  const PackedHalf left = pack_half(weight, tile, thread, 0);
  const PackedHalf right = pack_half(weight, tile, thread, 1);
  reinterpret_cast<uint4*>(packed)[thread] =
      make_uint4(left.codes[0], left.codes[1], right.codes[0], right.codes[1]);
  if (owns_scales()) {
    *scales_of(packed) = make_uint2(left.scales, right.scales);
  }
}

__global__ void __launch_bounds__(WeightTile::kThreads)
    unpack(const __grid_constant__ UnpackWeightParams p, const WeightTiles tiles) {
  const WeightTileOrigin tile = tiles.origin(blockIdx.x);
  const UnpackedWeight<std::uint8_t> weight = p.weight.skip(tile.weight);
  const int thread = static_cast<int>(threadIdx.x);
  uint4 codes = {};
  uint2 scales = {};
  if (tile.row < weight.rows) {
    const std::uint8_t* const packed =
        p.packed + tile.weight * p.packed_batch_stride + tiles.offset(tile);
    codes = reinterpret_cast<const uint4*>(packed)[thread];
    scales = *scales_of(packed);
  }
  unpack_codes({codes.x, codes.y}, weight, tile, thread, 0);
  unpack_codes({codes.z, codes.w}, weight, tile, thread, 1);
  if (owns_scales()) {
    unpack_scales(scales.x, weight, tile, thread, 0);
    unpack_scales(scales.y, weight, tile, thread, 1);
  }
}

}  // namespace prepack_nvfp4

void launch_prepack_nvfp4_weight(const PrepackWeightParams& p, Stream stream) {
  const WeightTiles tiles(p.weight.batch, p.weight.rows, p.weight.blocks);
  launch<prepack_nvfp4::prepack>(static_cast<unsigned>(tiles.count()), WeightTile::kThreads, 0,
                                 stream, p, tiles);
}

void launch_unpack_nvfp4_weight(const UnpackWeightParams& p, Stream stream) {
  const WeightTiles tiles(p.weight.batch, p.weight.scale_rows, p.weight.blocks);
  launch<prepack_nvfp4::unpack>(static_cast<unsigned>(tiles.count()), WeightTile::kThreads, 0,
                                stream, p, tiles);
}

}  // namespace tilewright::cuda
