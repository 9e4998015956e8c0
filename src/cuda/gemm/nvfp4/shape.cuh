// A config of the kernel nvfp4 at compile time, and its SMEM.
#pragma once

#include <array>
#include <type_traits>

#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"
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

// The compile-time side of config kIndex, for C in FP32 or in 16 bits.
template <int kIndex, typename Operand, bool kFp32>
struct Shape {
  using Element = Operand;  // of A, and of the weight in registers
  static constexpr bool kHasTotals = kFp32;
  static constexpr Nvfp4Config C = kNvfp4Configs[kIndex];
  static constexpr int kConsumers = C.row_consumers * C.column_consumers;
  static constexpr int kConsumerThreads = kConsumers * 128;
  static constexpr int kColumnSteps = C.columns() / WeightTile::kColumns;
  // What a block loads for its cluster: some steps of all tokens or, where steps cannot be divided,
  // all steps of some tokens.
  static constexpr bool kSharesSteps = kColumnSteps % C.cluster == 0;
  static_assert(kSharesSteps || !C.cuts_tokens(), "blocks that share tokens load equal parts");
  static constexpr int kShareSteps = kSharesSteps ? kColumnSteps / C.cluster : kColumnSteps;
  static constexpr int kShareTokens = kSharesSteps ? C.tokens : C.tokens / C.cluster;
  using Barrier = cutlass::arch::NamedBarrier;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kAccumulators = C.tokens / 2;  // of a thread
  // When column consumers' sums have been added up, so many of them (sharers) finish the tile, with
  // an equal number of its tokens each, at least eight.
  static constexpr int kSharers = std::min(C.column_consumers, C.tokens / 8);
  static constexpr int kOwnTokens = C.tokens / kSharers;
  static constexpr int kOwnSums = kAccumulators / kSharers;
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
  static constexpr int kOwners = C.row_consumers * kSharers;
  using Sums = SumSlots<kOwners * 128, kOwnSums>;
  static constexpr int kCourierThreads = kOwners * 128 + 32;  // the courier and those it serves
};

// Sums from the consumers of other columns: each sharer gets those of its own tokens.
template <typename S, int kOthers = S::C.column_consumers - 1>
struct ColumnSums {
  float4 at[S::C.row_consumers][S::kSharers][kOthers][S::kOwnSums / 4][128];
};
template <typename S>
struct ColumnSums<S, 0> {};

template <typename S, int kCount>
struct StagedStorage {
  static constexpr int kStages = kCount;
  using Position = RingPosition<kStages>;
  using LayoutA = decltype(tile_to_shape(
      GMMA::Layout_K_SW128_Atom<typename S::Element>{},
      cute::Shape<Int<S::C.tokens>, _64, Int<S::kColumnSteps>, Int<kStages>>{}));
  alignas(1024) typename S::Element sA[kStages][S::kColumnSteps][S::C.tokens * 64];
  alignas(128) char sB[kStages][S::C.row_consumers][S::kColumnSteps * WeightTile::k_bytes];
  // Where consumers transpose their sums: those of a whole tile, or each warp its own.
  using WarpTurns = std::array<typename S::Epilogue::Stage, 4>;
  union Turn {
    alignas(16) WarpTurns warps;
    std::conditional_t<S::C.stores_tiles(), typename S::Store::Stage, WarpTurns> tile;
  };
  Turn turn[S::kOwners];
  ColumnSums<S> sums;
  int worker;
  TmaRing<kStages, S::C.cluster> ring;
};

// The number of stages for which a block's SMEM has room.
template <typename S, int kCount = 1>
constexpr int stages_that_fit() {
  constexpr std::size_t kRoom_bytes = 227 * 1024;
  static_assert(sizeof(StagedStorage<S, kCount>) <= kRoom_bytes);
  if constexpr (sizeof(StagedStorage<S, kCount + 1>) > kRoom_bytes) {
    return kCount;
  } else {
    return stages_that_fit<S, kCount + 1>();
  }
}

template <typename S>
struct SharedStorage : StagedStorage<S, stages_that_fit<S>()> {};

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
