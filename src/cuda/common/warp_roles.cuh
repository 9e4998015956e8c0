// A block of one producer warpgroup and several consumer warpgroups: how many threads it has, and
// how many registers each warpgroup gets.
#pragma once

#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/cutlass.h>

#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {

constexpr int block_threads(int consumers) { return (1 + consumers) * kWarpgroupThreads; }

// At the start the SM's registers are spread evenly over the threads, 168 or 128 each. The producer
// then gives back what the consumers take. Both numbers are multiples of 8.
struct RoleRegisters {
  int producer;
  int consumer;
};

constexpr RoleRegisters role_registers(int consumers) {
  return consumers == 3 ? RoleRegisters{32, 160} : RoleRegisters{40, 232};
}

// Each warp of warpgroup 0 runs `produce` with its index. Each other warpgroup runs `consume` with
// its number, from 0 on.
template <int kConsumers, RoleRegisters kRegisters = role_registers(kConsumers), typename Produce,
          typename Consume>
__device__ __forceinline__ void run_roles(Produce&& produce, Consume&& consume) {
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters.producer>();
    produce(cutlass::canonical_warp_idx_sync());
  } else {
    cutlass::arch::warpgroup_reg_alloc<kRegisters.consumer>();
    consume(warpgroup - 1);
  }
}

}  // namespace tilewright::cuda
