// How the ladder's kernels on tensor cores finish a tile: O is divided by l, the LSE is stored, and
// O goes from the accumulator to global memory, through SMEM and by TMA.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

// At the end, O becomes O / l (0 for rows that saw no key), and each row's LSE is stored.
template <typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void normalize(const AttentionParams& p, const TileWalk& walk, int row0, TensorO& rO,
                          const TensorC& cO, const RowState<kRows>& state) {
  float inverse_l[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float l = row_sum<TiledMma>(state.l[i]);
    inverse_l[i] = l == 0.0f ? 0.0f : 1.0f / l;
    const int row = row0 + cute::get<0>(cO(i, 0));
    if (p.lse != nullptr && cute::get<1>(cO(i, 0)) == 0 && row < p.q_len) {
      *row_pointer<float>(p.lse, p.lse_stride, walk.batch, row, walk.head) =
          log_sum_exp(state.m[i], l, p.scale);
    }
  }
  scale_rows(rO, inverse_l);
}

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
