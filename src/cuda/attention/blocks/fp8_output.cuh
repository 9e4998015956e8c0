// How the ladder's FP8 kernels finish a tile: O is divided by l, the LSE is stored, and O goes from
// the accumulator to global memory, through the SMEM of Q and by TMA. In 16 bits O takes twice Q's
// room, so that it goes in two halves.
#pragma once

#include <cstdint>
#include <cute/tensor.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/fp8_descale.cuh"
#include "cuda/attention/blocks/fp8_tiles.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

// At the end, O becomes v_scale * O / l (0 for rows that saw no key), and each row's LSE is stored:
// a maximum times `score_scale` is in natural units. O and l still have P's factor.
template <typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void normalize_fp8(const AttentionParams& p, const TileWalk& walk, int row0,
                              float score_scale, float v_scale, TensorO& rO, const TensorC& cO,
                              const RowState<kRows>& state) {
  constexpr float kInverseFactor = 1.0f / (1 << kP_log2);
  float factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float l = row_sum<TiledMma>(state.l[i]);
    factor[i] = l == 0.0f ? 0.0f : v_scale / l;
    const int row = row0 + cute::get<0>(cO(i, 0));
    if (p.lse != nullptr && cute::get<1>(cO(i, 0)) == 0 && row < p.q_len) {
      *row_pointer<float>(p.lse, p.lse_stride, walk.batch, row, walk.head) =
          log_sum_exp(state.m[i], l * kInverseFactor, score_scale);
    }
  }
  scale_rows(rO, factor);
}

// A half of O, (64, D / 2) in BF16: its rows have as many bytes as Q's.
template <int kHeadDim>
struct Fp8OutputHalf {
  using Element = cute::bfloat16_t;
  static constexpr int kColumns = kHeadDim / 2;
  static constexpr int kBoxColumns = kColumns < 64 ? kColumns : 64;  // of a TMA store
  static constexpr TmaSwizzle kSwizzle = kBoxColumns == 64 ? TmaSwizzle::b128 : TmaSwizzle::b64;
  using Shape = cute::Shape<cute::_64, cute::Int<kColumns>>;
  using Layout = decltype(cute::tile_to_shape(AtomOfRows<Element, 2 * kColumns>{}, Shape{}));
  using TiledMma = typename Fp8Layouts<kHeadDim, 64, 1>::template MmaPv<kColumns>;
};

// Rounds O to BF16 and stores the rows [row0, row0 + 64) that lie in the tensor. `sQ` is the
// warpgroup's own SMEM; `barrier` is a named barrier of its own.
template <int kHeadDim, typename TensorO>
__device__ void store_fp8_output(const CUtensorMap& map, const TileWalk& walk, int row0,
                                 const TensorO& tOrO, void* sQ, int thread, std::uint32_t barrier) {
  using namespace cute;
  using Half = Fp8OutputHalf<kHeadDim>;
  using Element = typename Half::Element;
  auto* const smem = static_cast<Element*>(sQ);
  const auto copier =
      make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, typename Half::TiledMma{});
  const auto thread_copy = copier.get_slice(thread);
  const Tensor sO = make_tensor(make_smem_ptr(smem), typename Half::Layout{});
  Tensor rO = make_fragment_like<Element>(
      partition_fragment_C(typename Half::TiledMma{}, typename Half::Shape{}));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Tensor tOrHalf = make_tensor(tOrO.data() + half * size(rO), rO.layout());
    round_to_16_bits(tOrHalf, rO);
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, barrier);  // nobody reads sO any more
    copy(copier, thread_copy.retile_S(rO), thread_copy.partition_D(sO));
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(kWarpgroupThreads, barrier);  // all of the half is there
    if (thread == 0) {
      tma_store_tile<kWarpgroupRows, Half::kColumns, Half::kBoxColumns>(
          map, smem, row0, walk.head, walk.batch, half * Half::kColumns);
    }
  }
}

}  // namespace tilewright::cuda
