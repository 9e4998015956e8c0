// Attention's tiles on tensor cores: SMEM layouts, and the MMAs of both GEMMs. A warpgroup has 64
// query rows.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_shapes.cuh"

namespace tilewright::cuda {

inline constexpr int kWarpgroupRows = 64;

// The operands and results of S (64, Bc) = Q K^T, which reads both operands from SMEM, and of
// O (64, Dv) += P V, which reads P from registers. `Layouts` has the SMEM layouts of Q, K and V as
// the MMAs see them, and the MMAs.
template <typename Element, int kBc, int kValueDim, typename Layouts>
struct TileOperands {
  using Rows = cute::Int<kWarpgroupRows>;

  // Operands in SMEM as the MMA's descriptors: (MMA, MMA_M or MMA_N, MMA_K); K, V with a stage.
  __device__ static auto operand_q(Element* sQ) {
    const auto mma = qk().get_slice(0);  // a descriptor is the same for every thread
    return mma.make_fragment_A(mma.partition_A(tile(sQ, typename Layouts::LayoutQ{})));
  }
  __device__ static auto operand_k(Element* sK) {
    const auto mma = qk().get_slice(0);
    return mma.make_fragment_B(mma.partition_B(tile(sK, typename Layouts::LayoutK{})));
  }
  __device__ static auto operand_v(Element* sV) {
    const auto mma = pv().get_slice(0);
    return mma.make_fragment_B(mma.partition_B(tile(sV, typename Layouts::LayoutVt{})));
  }

  // Accumulators in registers, (MMA, MMA_M, MMA_N), and the coordinates of a thread's elements.
  // Coordinates are signed or unsigned as `thread` is.
  using ShapeS = cute::Shape<Rows, cute::Int<kBc>>;
  using ShapeO = cute::Shape<Rows, cute::Int<kValueDim>>;
  __device__ static auto scores() { return cute::partition_fragment_C(qk(), ShapeS{}); }
  __device__ static auto output() { return cute::partition_fragment_C(pv(), ShapeO{}); }
  __device__ static auto score_coordinates(auto thread) {
    return qk().get_slice(thread).partition_C(cute::make_identity_tensor(ShapeS{}));
  }
  __device__ static auto output_coordinates(auto thread) {
    return pv().get_slice(thread).partition_C(cute::make_identity_tensor(ShapeO{}));
  }

  template <typename Layout>
  __device__ static auto tile(Element* smem, Layout layout) {
    return cute::make_tensor(cute::make_smem_ptr(smem), layout);
  }

 private:
  __device__ static auto qk() { return typename Layouts::TiledMmaQk{}; }
  __device__ static auto pv() { return typename Layouts::TiledMmaPv{}; }
};

template <typename Element, int kHeadDim, int kBc, int kStages, int kValueDim, int kVStages>
struct WgmmaLayouts {
  using Rows = cute::Int<kWarpgroupRows>;
  using Bc = cute::Int<kBc>;
  using D = cute::Int<kHeadDim>;
  using Dv = cute::Int<kValueDim>;
  using Stages = cute::Int<kStages>;
  using VStages = cute::Int<kVStages>;
  static constexpr bool kIsWide = kHeadDim % 64 == 0 && kValueDim % 64 == 0;
  static constexpr int kBoxColumns = kIsWide ? 64 : 32;  // of a TMA load: the swizzle's width
  using AtomK = cute::conditional_t<kIsWide, cute::GMMA::Layout_K_SW128_Atom<Element>,
                                    cute::GMMA::Layout_K_SW64_Atom<Element>>;  // 8 x kBoxColumns
  using AtomMn = cute::conditional_t<kIsWide, cute::GMMA::Layout_MN_SW128_Atom<Element>,
                                     cute::GMMA::Layout_MN_SW64_Atom<Element>>;  // transposed
  using LayoutQ = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, D>{}));
  using LayoutO = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, Dv>{}));
  using LayoutK = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Bc, D, Stages>{}));
  using LayoutVt = decltype(cute::tile_to_shape(AtomMn{}, cute::Shape<Dv, Bc, VStages>{},
                                                cute::Step<cute::_2, cute::_1, cute::_3>{}));
  using TiledMmaQk = decltype(cute::make_tiled_mma(wgmma_qk<Element, kBc, kHeadDim>()));
  using TiledMmaPv = decltype(cute::make_tiled_mma(
      cute::GMMA::rs_op_selector<Element, Element, float, cute::Shape<Rows, Dv, Bc>,
                                 cute::GMMA::Major::K, cute::GMMA::Major::MN>()));
};

// Tiles of 16-bit elements. V lies in SMEM as in GMEM, Dv contiguous; as the B operand (Dv, Bc)
// that is MN-major. Where a head dim is no multiple of 64, the swizzle has half the width.
template <typename Element, int kHeadDim, int kBc, int kStages, int kValueDim = kHeadDim,
          int kVStages = kStages>
struct WgmmaTiles
    : WgmmaLayouts<Element, kHeadDim, kBc, kStages, kValueDim, kVStages>,
      TileOperands<Element, kBc, kValueDim,
                   WgmmaLayouts<Element, kHeadDim, kBc, kStages, kValueDim, kVStages>> {};

}  // namespace tilewright::cuda
