// Attention's tiles of E4M3 on tensor cores.
#pragma once

#include <cstdint>
#include <cute/tensor.hpp>

#include "cuda/attention/blocks/fp8_layout.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/common/numeric.cuh"

namespace tilewright::cuda {

template <int kHeadDim, int kBc, int kStages>
struct Fp8Tiles
    : Fp8Layouts<kHeadDim, kBc, kStages>,
      TileOperands<cute::float_e4m3_t, kBc, kHeadDim, Fp8Layouts<kHeadDim, kBc, kStages>> {};

// Rounds P to E4M3, which saturates, four values to a register of A. `registers` says which of P's
// they are.
template <typename TensorP, typename Registers, typename TensorA>
__device__ void round_to_e4m3(const TensorP& tSrP, Registers registers, TensorA& tOrP) {
  auto words = cute::recast<std::uint32_t>(tOrP);
#pragma unroll
  for (int i = 0; i < cute::size(words); ++i) {
    words(i) = pack_e4m3x4(tSrP(registers(4 * i)), tSrP(registers(4 * i + 1)),
                           tSrP(registers(4 * i + 2)), tSrP(registers(4 * i + 3)));
  }
}

}  // namespace tilewright::cuda
