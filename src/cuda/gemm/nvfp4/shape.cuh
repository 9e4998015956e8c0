// A row of the table of configs at compile time, and the SMEM that it takes.
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

// Barriers beside those of the ring. Of the last kind there is one for each consumer of rows.
enum NamedBarriers { kSetUpBarrier, kStoredBarrier, kArrivedBarrier, kRowsBarrier };

// The compile-time side of config kIndex, where C is FP32 or has 16 bits.
template <int kIndex, typename Operand, bool kFp32>
struct Shape {
  using Element = Operand;  // of A, and of the weight in registers
  static constexpr bool kHasTotals = kFp32;
  static constexpr Nvfp4Config C = kNvfp4Configs[kIndex];
  static constexpr int kConsumers = C.row_consumers * C.column_consumers;
  static constexpr int kConsumerThreads = kConsumers * 128;
  static constexpr int kColumnSteps = C.columns() / WeightTile::kColumns;
  // What a block loads of the tokens, for its cluster: some of the steps, or else some of the
  // tokens.
  static constexpr bool kSharesSteps = kColumnSteps % C.cluster == 0;
  static_assert(kSharesSteps || !C.cuts_tokens(), "blocks that share tokens load equal parts");
  static constexpr int kShareSteps = kSharesSteps ? kColumnSteps / C.cluster : kColumnSteps;
  static constexpr int kShareTokens = kSharesSteps ? C.tokens : C.tokens / C.cluster;
  using Barrier = cutlass::arch::NamedBarrier;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kAccumulators = C.tokens / 2;  // of a thread
  // Once columns have been added up, so many consumers of the same rows share the tokens out, at
  // least eight for each.
  static constexpr int kSharers = std::min(C.column_consumers, C.tokens / 8);
  static constexpr int kOwnTokens = C.tokens / kSharers;
  static constexpr int kOwnSums = kAccumulators / kSharers;
  // FP32 totals take up the sums every so many chunks, as tensor cores cut off what does not fit a
  // sum, always towards zero: 2048 columns lost a relative 1.2e-6 to 1.5e-6.
  static constexpr int kChunksOfSum = 1024 / (64 * C.steps);
  static_assert(!kFp32 || C.steps > 1, "the other loop has no totals");
  // 96 or 168 a thread at first; then the loading warpgroup gives up what the others take. With one
  // consumer there are enough for all.
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
  static constexpr int kCourierThreads = kOwners * 128 + 32;  // with those it serves
};

// For each sharer the sums of its tokens from the consumers of other columns.
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
  // Where consumers turn their sums: all of a tile's together, or each warp by itself.
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

// As many stages as a block's SMEM has room for.
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
