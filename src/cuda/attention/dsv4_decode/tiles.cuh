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
inline constexpr int kBlocks = kDims / kBlockDims;
inline constexpr int kConsumers = 2;      // warpgroups
inline constexpr int kConsumerWarps = 4;  // of each

// Both GEMMs go by column blocks: S (64, 64) += Q K^T of 64 dims, and (64, 64) = P V of 64 columns.
// All operands are blocks of 64 x 64 in SMEM.
using BlockShape = cute::Shape<cute::_64, cute::_64>;
using MmaShape = cute::Shape<cute::_64, cute::_64, cute::_64>;
using MmaQk =
    decltype(cute::make_tiled_mma(cute::GMMA::ss_op_selector<Element, Element, float, MmaShape>()));
using MmaPv = decltype(cute::make_tiled_mma(
    cute::GMMA::ss_op_selector<Element, Element, float, MmaShape, cute::GMMA::Major::K,
                               cute::GMMA::Major::MN>()));
using LayoutK =
    decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<Element>{}, BlockShape{}));
using LayoutVt = decltype(cute::tile_to_shape(cute::GMMA::Layout_MN_SW128_Atom<Element>{},
                                              BlockShape{}, cute::Step<cute::_2, cute::_1>{}));

template <typename Mma, typename Layout>
__device__ auto operand_a(Element* block, Layout layout) {
  const auto mma = Mma{}.get_slice(0);
  return mma.make_fragment_A(
      mma.partition_A(cute::make_tensor(cute::make_smem_ptr(block), layout)));
}
template <typename Mma, typename Layout>
__device__ auto operand_b(Element* block, Layout layout) {
  const auto mma = Mma{}.get_slice(0);
  return mma.make_fragment_B(
      mma.partition_B(cute::make_tensor(cute::make_smem_ptr(block), layout)));
}
// Column blocks of Q and of a key tile, as K and as V, and a tile of P.
__device__ inline auto operand_q(Element* sQ) { return operand_a<MmaQk>(sQ, LayoutK{}); }
__device__ inline auto operand_k(Element* sK) { return operand_b<MmaQk>(sK, LayoutK{}); }
__device__ inline auto operand_p(Element* sP) { return operand_a<MmaPv>(sP, LayoutK{}); }
__device__ inline auto operand_v(Element* sV) { return operand_b<MmaPv>(sV, LayoutVt{}); }

// The rows that an item may have.
__device__ inline int rows_of(const ItemShape& shape) {
  return shape.tile_heads * shape.tile_tokens;
}

// Loads the unit's rows of Q, where SMEM has room for kSharedRows. One thread calls it.
template <int kSharedRows>
__device__ inline void load_q(Element* sQ, TmaBarrier& full, const Unit& unit, const Launch& launch,
                              const CUtensorMap& map) {
  full.arrive_and_expect_tx(rows_of(launch.shape) * kDims * sizeof(Element));
  for (int column = 0; column < kDims; column += kBlockDims) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full),
                                 static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                 sQ + column * kSharedRows, column, unit.head0, unit.token0,
                                 launch.is_packed ? 0 : unit.request);
  }
}

// The element of row `row` of a column block, columns from 8 * vector on: the 128-byte swizzle
// exchanges a row's vectors.
__device__ inline Element* vector_of(Element* block, int row, int vector) {
  return block + row * kBlockDims + (vector ^ row % 8) * 8;
}

// What consumers tell each other of a tile's rows.
struct TileRows {
  float max[kRows];          // of the scores, in units of log2
  float sum[kRows];          // of P
  float rounded_sum[kRows];  // of P as it is multiplied with V
};

}  // namespace tilewright::cuda::dsv4
