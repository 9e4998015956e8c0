// Stores a tile of C^T from the accumulators to C by TMA. A consumer transposes its sums in SMEM,
// and computes the next tile while TMA stores this one.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gemm/nvfp4/epilogue.cuh"

namespace tilewright::cuda {

// All 128 threads of a consumer call each function; `barrier` is a named barrier of their own.
template <int kTokens>
struct TileStore {
  static constexpr int kRows = 64;  // a line: 128 bytes of C

  struct Buffer {
    alignas(1024) std::uint16_t lines[kTokens][kRows];
  };

  // Waits until TMA has read the tile before. Returns whether `yes` is true in all threads.
  __device__ static bool begin(int barrier, bool yes) {
    if (is_storing_thread()) {
      cute::tma_store_wait<0>();
    }
    std::uint32_t all = 0;
    asm volatile(
        "{\n"
        ".reg .pred yes, all;\n"
        "setp.ne.u32 yes, %2, 0;\n"
        "barrier.cta.red.and.pred all, %1, 128, yes;\n"
        "selp.u32 %0, 1, 0, all;\n"
        "}\n"
        : "=r"(all)
        : "r"(barrier + cutlass::arch::NamedBarrier::ReservedNamedBarrierCount),
          "r"(static_cast<std::uint32_t>(yes))
        : "memory");
    return all != 0;
  }

  // `value(i)` is accumulator i, finished. The map's boxes have 64 rows and a tile's tokens.
  template <typename T, typename Value>
  __device__ static void run(const CUtensorMap& map_c, Buffer& buffer, int barrier,
                             const TileOrigin& origin, const Value& value) {
    static_assert(kTokens % 16 == 0);
    const int lane = lane_asked_anew();
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    // stmatrix writes four matrices, numbered by lane / 8: rows g, rows g + 8, and both again for
    // the next eight tokens. TMA expects a line's 16-byte pieces swizzled by the line's number.
    const int token = lane / 16 * 8 + lane % 8;
    const int place = (2 * warp + lane / 8 % 2) ^ token % 8;
#pragma unroll
    for (int first = 0; first < kTokens; first += 16) {
      std::uint32_t pairs[4];  // for each eight tokens: rows g, rows g + 8
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = first / 2 + 2 * i;
        const T both[2] = {from_float<T>(value(at)), from_float<T>(value(at + 1))};
        pairs[i] = reinterpret_cast<const std::uint32_t&>(both);
      }
      cute::SM90_U16x8_STSM_T::copy(
          pairs[0], pairs[1], pairs[2], pairs[3],
          reinterpret_cast<cute::uint128_t&>(buffer.lines[first + token][place * 8]));
    }
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(128, barrier);
    if (is_storing_thread()) {
      cute::SM90_TMA_STORE_4D::copy(&map_c, &buffer, origin.row, origin.token, 0, origin.batch);
      cute::tma_store_arrive();
    }
  }

  // Waits for the last store. To be called before the block ends.
  __device__ static void finish() { cute::tma_store_wait<0>(); }

 private:
  __device__ static bool is_storing_thread() { return threadIdx.x % 128 == 0; }
};

}  // namespace tilewright::cuda
