// From the accumulators of a large tile of C^T to C, by way of the copy engine: a consumer turns 32
// tokens at a time in SMEM, and has the next ones in hand while these are on their way.
//
//   pass p   stmatrix to lines p % 3 | all are there | a thread: store p, wait for store p - 1
//
// So whoever has passed the barrier of pass p knows that store p - 2 has been read, whose
// lines are those of pass p + 1.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gemm/nvfp4/epilogue.cuh"

namespace tilewright::cuda {

struct TileStore {
  static constexpr int kRows = 64;  // a line: 128 bytes of C
  static constexpr int kPassTokens = 32;
  static constexpr int kBuffers = 3;

  struct Stage {
    alignas(1024) std::uint16_t lines[kBuffers][kPassTokens][kRows];
  };

  // By the 128 threads of a consumer. `acc` has been scaled. `origin` is the consumer's, `bias` for
  // rows g and g + 8 of a warp. `barrier` is this consumer's own.
  template <typename T, int kTokens, typename Accumulator>
  __device__ static void run(const CUtensorMap& map_c, Stage& stage, int barrier,
                             const Accumulator& acc, const float (&bias)[2],
                             const TileOrigin& origin) {
    const int lane = lane_asked_anew();
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const bool stores = warp == 0 && lane == 0;
    // Of the matrices that stmatrix writes, lane / 8 counts: rows g, g + 8, the same of eight
    // tokens on. The copy engine expects a line's 16-byte pieces swizzled by the line's number.
    const int token = lane / 16 * 8 + lane % 8;
    const int place = (2 * warp + lane / 8 % 2) ^ token % 8;
    if (stores) {
      cute::tma_store_wait<0>();  // the tile before has been read
    }
    cutlass::arch::NamedBarrier::sync(4 * 32, barrier);
#pragma unroll
    for (int first = 0; first < kTokens; first += kPassTokens) {
      auto& lines = stage.lines[first / kPassTokens % kBuffers];
#pragma unroll
      for (int group = 0; group < kPassTokens; group += 16) {
        std::uint32_t pairs[4];  // by eight tokens: rows g, rows g + 8
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (first + group) / 2 + 2 * i;
          const T both[2] = {from_float<T>(acc(at) + bias[i % 2]),
                             from_float<T>(acc(at + 1) + bias[i % 2])};
          pairs[i] = reinterpret_cast<const std::uint32_t&>(both);
        }
        cute::SM90_U16x8_STSM_T::copy(
            pairs[0], pairs[1], pairs[2], pairs[3],
            reinterpret_cast<cute::uint128_t&>(lines[group + token][place * 8]));
      }
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(4 * 32, barrier);
      if (stores) {
        cute::SM90_TMA_STORE_4D::copy(&map_c, &lines, origin.row, origin.token + first, 0,
                                      origin.batch);
        cute::tma_store_arrive();
        cute::tma_store_wait<1>();
      }
    }
  }

  // Before the block ends.
  __device__ static void finish() { cute::tma_store_wait<0>(); }
};

}  // namespace tilewright::cuda
