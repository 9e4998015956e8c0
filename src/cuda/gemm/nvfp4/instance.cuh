// An instance of the kernel nvfp4: a config and the dtypes that it is compiled for, and its SMEM.
#pragma once

#include <array>
#include <type_traits>

#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/gemm/nvfp4/column_sums.cuh"
#include "cuda/gemm/nvfp4/configs.hpp"
#include "cuda/gemm/nvfp4/epilogue.cuh"
#include "cuda/gemm/nvfp4/partial_sums.cuh"
#include "cuda/gemm/nvfp4/tile_store.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

using namespace cute;

inline constexpr int kTileLines = WeightTile::k_bytes / 256;

// Named barriers. From kRowsBarrier on there is one for each row consumer.
enum NamedBarriers { kSetUpBarrier, kStoredBarrier, kArrivedBarrier, kRowsBarrier };

// The instance of config kIndex for operands of one dtype, and for C in FP32 or in 16 bits.
template <int kIndex, typename Operand, bool kFp32>
struct Instance {
  using Element = Operand;  // of A, and of the weight in registers
  static constexpr bool kHasTotals = kFp32;
  static constexpr Nvfp4Config C = kNvfp4Configs[kIndex];
  static constexpr int kConsumers = C.row_consumers * C.column_consumers;
  static constexpr int kConsumerThreads = kConsumers * 128;
  static constexpr int kColumnSteps = C.columns() / WeightTile::kColumns;
  // A block of a cluster loads a share of a chunk's tokens, for all of its blocks: some steps of
  // all tokens or, where the steps cannot be divided, all steps of some tokens.
  static constexpr bool kDividesSteps = kColumnSteps % C.cluster == 0;
  static_assert(kDividesSteps || !C.cuts_tokens(),
                "blocks that divide the tokens load equally many");
  static constexpr int kShareSteps = kDividesSteps ? kColumnSteps / C.cluster : kColumnSteps;
  static constexpr int kShareTokens = kDividesSteps ? C.tokens : C.tokens / C.cluster;
  using Barrier = cutlass::arch::NamedBarrier;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kAccumulators = C.tokens / 2;  // of a thread
  // Of the consumers with the same rows and different columns, so many finish the tile when their
  // sums have been added up. Each finishes equally many of its tokens, at least eight.
  static constexpr int kColumnFinishers = std::min(C.column_consumers, C.tokens / 8);
  static constexpr int kOwnTokens = C.tokens / kColumnFinishers;
  static constexpr int kOwnSums = kAccumulators / kColumnFinishers;
  // Every so many chunks the sums are added to FP32 totals: tensor cores cut off what does not fit
  // a sum, always towards zero. Without totals 2048 columns lost a relative 1.2e-6 to 1.5e-6.
  static constexpr int kChunksOfSum = 1024 / (64 * C.steps);
  static_assert(!kFp32 || C.steps > 1, "the other loop has no totals");
  // A thread starts with 96 or 168 registers. The loading warpgroup then gives back what consumers
  // take. With a single consumer there are enough for all.
  static constexpr bool kMovesRegisters = kConsumers > 1;
  static constexpr int kProducerRegisters = kConsumers == 4 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 4 ? 112 : 232;
  static_assert(!kMovesRegisters || kProducerRegisters + kConsumers * kConsumerRegisters <=
                                        65536 / kThreads / 8 * 8 * (kConsumers + 1));

  using TiledMma = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, cute::Shape<_64, Int<C.tokens>, _64>>()));
  using Epilogue = WarpEpilogue<kOwnTokens>;
  using Store = TileStore<C.tokens>;
  static constexpr int kFinishers = C.row_consumers * kColumnFinishers;  // of a block
  using Sums = SumSlots<kFinishers * 128, kOwnSums>;
  static constexpr int kCourierThreads = kFinishers * 128 + 32;  // the courier and those it serves
};

template <typename I, int kCount>
struct StagedStorage {
  static constexpr int kStages = kCount;
  using Position = RingPosition<kStages>;
  using LayoutA = decltype(tile_to_shape(
      GMMA::Layout_K_SW128_Atom<typename I::Element>{},
      cute::Shape<Int<I::C.tokens>, _64, Int<I::kColumnSteps>, Int<kStages>>{}));
  alignas(1024) typename I::Element sA[kStages][I::kColumnSteps][I::C.tokens * 64];
  alignas(128) char sB[kStages][I::C.row_consumers][I::kColumnSteps * WeightTile::k_bytes];
  // Where a consumer transposes its sums: all of them together, or each warp its own.
  using WarpBuffers = std::array<typename I::Epilogue::Buffer, 4>;
  union TransposeBuffer {
    alignas(16) WarpBuffers warps;
    std::conditional_t<I::C.stores_tiles(), typename I::Store::Buffer, WarpBuffers> tile;
  };
  TransposeBuffer transpose[I::kFinishers];
  ColumnSums<I> sums;
  int worker;
  TmaRing<kStages, I::C.cluster> ring;
};

// The number of stages for which a block's SMEM has room.
template <typename I, int kCount = 1>
constexpr int stages_that_fit() {
  constexpr std::size_t kRoom_bytes = 227 * 1024;
  static_assert(sizeof(StagedStorage<I, kCount>) <= kRoom_bytes);
  if constexpr (sizeof(StagedStorage<I, kCount + 1>) > kRoom_bytes) {
    return kCount;
  } else {
    return stages_that_fit<I, kCount + 1>();
  }
}

template <typename I>
struct SharedStorage : StagedStorage<I, stages_that_fit<I>()> {};

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
