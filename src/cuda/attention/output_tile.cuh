// Stores a warpgroup's O tile from its accumulator to global memory, through SMEM and by TMA.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/wgmma_tiles.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

// Rounds O to BF16 and stores the rows [row0, row0 + 64) that lie in the tensor. `sO` is the
// warpgroup's own SMEM, 64 x D and swizzled; `barrier` is a named barrier of its own.
template <typename TiledMma, typename TensorO, typename TensorS>
__device__ void store_output(const CUtensorMap& map, const TileWalk& walk, int row0,
                             const TensorO& tOrO, TensorS sO, int thread, std::uint32_t barrier) {
  using namespace cute;
  using Element = typename TensorS::value_type;
  constexpr int kHeadDim = decltype(size<1>(sO))::value;
  constexpr int kBoxColumns = 64;
  Tensor rO = make_tensor_like<Element>(tOrO);
  round_to_16_bits(tOrO, rO);
  const auto copier = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, TiledMma{});
  const auto thread_copy = copier.get_slice(thread);
  cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, barrier);  // no WGMMA reads sO any more
  copy(copier, thread_copy.retile_S(rO), thread_copy.partition_D(sO));
  cutlass::arch::fence_view_async_shared();
  cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, barrier);  // all of the tile is there
  if (thread == 0) {
    tma_store_tile<kWarpgroupRows, kHeadDim, kBoxColumns>(map, raw_pointer_cast(sO.data()), row0,
                                                          walk.head, walk.batch);
  }
}

}  // namespace tilewright::cuda
