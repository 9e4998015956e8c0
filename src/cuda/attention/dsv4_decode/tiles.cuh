// SMEM of a block of dsv4_attention(), and the operands of its GEMMs. A tile of 64 keys lies there
// as BF16 with the 128-byte swizzle, 8 KB for each 64 dims. It is K, K-major, and V, MN-major, at
// once.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/attention/dsv4_decode/schedule.hpp"
#include "cuda/attention/dsv4_decode/unit.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda::dsv4 {

using Element = cute::bfloat16_t;

inline constexpr int kBlockDims = 64;  // dims of a column block: a row of 128 bytes
inline constexpr int kBlock_elements = kTileKeys * kBlockDims;
inline constexpr int kConsumers = 2;  // warpgroups, each with half of O's columns
inline constexpr int kHalfDims = kDims / kConsumers;
inline constexpr int kConsumerWarps = 4;  // of each

using AtomK = cute::GMMA::Layout_K_SW128_Atom<Element>;
using Keys = cute::Int<kTileKeys>;
using LayoutQ = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<cute::_64, cute::_512>{}));
using LayoutK = LayoutQ;  // (keys, dims)
using LayoutP = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<cute::_64, Keys>{}));

// S (64, 64) = Q K^T and O (64, kColumns) += P V, all operands in SMEM.
using MmaQk = decltype(cute::make_tiled_mma(
    cute::GMMA::ss_op_selector<Element, Element, float,
                               cute::Shape<cute::_64, Keys, cute::_512>>()));
template <int kColumns>
using MmaPv = decltype(cute::make_tiled_mma(
    cute::GMMA::ss_op_selector<Element, Element, float,
                               cute::Shape<cute::_64, cute::Int<kColumns>, Keys>,
                               cute::GMMA::Major::K, cute::GMMA::Major::MN>()));
// 32 columns lie in SMEM with the 64-byte swizzle.
template <int kColumns>
using AtomMn = cute::conditional_t<kColumns % 64 == 0, cute::GMMA::Layout_MN_SW128_Atom<Element>,
                                   cute::GMMA::Layout_MN_SW64_Atom<Element>>;
template <int kColumns>
using LayoutVt =
    decltype(cute::tile_to_shape(AtomMn<kColumns>{}, cute::Shape<cute::Int<kColumns>, Keys>{},
                                 cute::Step<cute::_2, cute::_1>{}));

template <typename Layout>
__device__ auto tile(Element* smem, Layout layout) {
  return cute::make_tensor(cute::make_smem_ptr(smem), layout);
}
__device__ inline auto operand_q(Element* sQ) {
  const auto mma = MmaQk{}.get_slice(0);
  return mma.make_fragment_A(mma.partition_A(tile(sQ, LayoutQ{})));
}
__device__ inline auto operand_k(Element* sK) {
  const auto mma = MmaQk{}.get_slice(0);
  return mma.make_fragment_B(mma.partition_B(tile(sK, LayoutK{})));
}
// A column block of K.
__device__ inline auto operand_k_block(Element* sK) {
  const auto mma = MmaQk{}.get_slice(0);
  return mma.make_fragment_B(mma.partition_B(tile(sK, LayoutP{})));
}
template <int kColumns>
__device__ auto operand_p(Element* sP) {
  const auto mma = MmaPv<kColumns>{}.get_slice(0);
  return mma.make_fragment_A(mma.partition_A(tile(sP, LayoutP{})));
}
// kColumns neighbouring columns of V; sV is the column block that they begin with.
template <int kColumns>
__device__ auto operand_v(Element* sV) {
  const auto mma = MmaPv<kColumns>{}.get_slice(0);
  return mma.make_fragment_B(mma.partition_B(tile(sV, LayoutVt<kColumns>{})));
}

// Loads the unit's rows of Q. One thread calls it.
__device__ inline void load_q(Element* sQ, TmaBarrier& full, const Unit& unit, const Launch& launch,
                              const CUtensorMap& map) {
  const int rows = launch.shape.tile_heads * launch.shape.tile_tokens;
  full.arrive_and_expect_tx(rows * kDims * sizeof(Element));
  for (int column = 0; column < kDims; column += kBlockDims) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full),
                                 static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                 sQ + column * kRows, column, unit.head0, unit.token0,
                                 launch.is_packed ? 0 : unit.request);
  }
}

// A warp says that what it has written to SMEM is there, for WGMMA to read.
__device__ inline void fill(cutlass::arch::ClusterBarrier& full) {
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    full.arrive();
  }
}

// Issues steps [kFirst, kEnd) of S = Q K^T, 16 dims each; the first step of all overwrites S. tB
// has the operand's steps from step kFirstB on.
template <int kFirst, int kEnd, int kFirstB = 0, typename TensorA, typename TensorB,
          typename TensorS>
__device__ __forceinline__ void issue_scores_of(const TensorA& tA, const TensorB& tB,
                                                TensorS& tSrS) {
  MmaQk mma;
  cute::warpgroup_fence_operand(tSrS);
  cute::warpgroup_arrive();
  mma.accumulate_ = kFirst == 0 ? cute::GMMA::ScaleOut::Zero : cute::GMMA::ScaleOut::One;
#pragma unroll
  for (int k = kFirst; k < kEnd; ++k) {
    cute::gemm(mma, tA(cute::_, cute::_, k), tB(cute::_, cute::_, k - kFirstB), tSrS);
    mma.accumulate_ = cute::GMMA::ScaleOut::One;
  }
  cute::warpgroup_commit_batch();
}

// The swizzle of a column block of kWidth columns: in row `row`, a vector of 8 elements lies where
// its number differs by this in some bits.
template <int kWidth = kBlockDims>
__device__ int exchange_of(int row) {
  static_assert(kWidth == 64 || kWidth == 32, "the swizzles of 128 and 64 bytes");
  return kWidth == 64 ? row % 8 : row / 2 % 4;
}
// The element of row `row`, columns from 8 * vector on.
template <int kWidth = kBlockDims>
__device__ Element* vector_of(Element* block, int row, int vector) {
  return block + row * kWidth + (vector ^ exchange_of<kWidth>(row)) * 8;
}

// The statistics of a tile's rows, in units of log2.
struct TileRows {
  float reference[kRows];    // of P
  float max[kRows];          // of the scores
  float sum[kRows];          // of P
  float rounded_sum[kRows];  // of P as it is multiplied with V
};

}  // namespace tilewright::cuda::dsv4
