// Issuing a warpgroup's GEMM and waiting for it.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

namespace tilewright::cuda {

inline constexpr int kWarpgroupThreads = 128;

// Issues C (+)= A B over all steps of K, or over the first 1 / kFraction of them, and returns at
// once. A is in SMEM or registers, B in SMEM, C in registers. No thread may touch C or A's
// registers before wgmma_wait. C is overwritten unless the product is accumulated.
template <int kFraction = 1, typename TiledMma, typename TensorA, typename TensorB,
          typename TensorC>
__device__ __forceinline__ void wgmma_issue_if(bool accumulate, TiledMma mma, const TensorA& tA,
                                               const TensorB& tB, TensorC& tC) {
  using namespace cute;
  constexpr int kSteps = decltype(size<2>(tA))::value;
  static_assert(kSteps % kFraction == 0);
  constexpr bool kAInRegisters =
      !is_base_of_v<GMMA::DescriptorIterator, typename TensorA::iterator>;
  if constexpr (kAInRegisters) {
    warpgroup_fence_operand(const_cast<TensorA&>(tA));
  }
  warpgroup_fence_operand(tC);
  warpgroup_arrive();
  mma.accumulate_ = accumulate ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
#pragma unroll
  for (int k = 0; k < kSteps / kFraction; ++k) {
    gemm(mma, tA(_, _, k), tB(_, _, k), tC);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

// The same where it is known beforehand.
template <bool kAccumulate, int kFraction = 1, typename TiledMma, typename TensorA,
          typename TensorB, typename TensorC>
__device__ __forceinline__ void wgmma_issue(TiledMma mma, const TensorA& tA, const TensorB& tB,
                                            TensorC& tC) {
  wgmma_issue_if<kFraction>(kAccumulate, mma, tA, tB, tC);
}

// Returns when at most kPending of the issued GEMMs are unfinished. `tC` is the result of the
// latest one that is finished.
template <int kPending, typename TensorC>
__device__ __forceinline__ void wgmma_wait(TensorC& tC) {
  cute::warpgroup_wait<kPending>();
  cute::warpgroup_fence_operand(tC);
}

// Keeps the wait that follows behind the computation of `value`, which is never negative. A wait
// has no operands, so that ptxas may move it up, ahead of arithmetic that should run during the
// wait; but it does not move it over a branch. All lanes of a warp take the same branch, so that
// uniform registers stay uniform.
__device__ __forceinline__ void wait_no_earlier_than(float value) {
  if (__any_sync(0xffffffffu, value < 0.0f)) {
    asm volatile("trap;");
  }
}

// Issues a GEMM and waits for it.
template <bool kAccumulate, typename TiledMma, typename TensorA, typename TensorB, typename TensorC>
__device__ __forceinline__ void wgmma(TiledMma mma, const TensorA& tA, const TensorB& tB,
                                      TensorC& tC) {
  wgmma_issue<kAccumulate>(mma, tA, tB, tC);
  wgmma_wait<0>(tC);
}

}  // namespace tilewright::cuda
