// Prefill over caches in small pages (kernel prefill, where pages have fewer rows than TMA should
// load at once).
//
// New here, over prefill: a warpgroup of its own copies K and V row by row, where a thread would
// ask TMA for each row. It takes registers from the consumers, of which there is only one if
// D = 256. All bits are prefill's.
//
// Source    prefill.cuh.
// Tiles     configs.hpp, as in prefill; Br = 64 if D = 256.
// SMEM      as in prefill.
// Registers 48 for a thread of the producer, 64 for one that copies and 200 for one of a consumer;
//           40, 160 and 240 with one consumer.
//
//   warp 1            schedule_tiles
//   warp 3, a thread  store: O
//   4 warps           copy_tiles: K(j), V(j+1), a quarter of the rows each, and Q (TMA)
//   consumers         issue QK(j), PV(j+1) | softmax of j
//
// Limits    Caches of 16 bits.
// Worklog   docs/worklog/prefill.md
#pragma once

#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/configs.hpp"
#include "cuda/attention/prefill/copy_rows.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace prefill {

// Config kIndex of the table.
template <int kIndex, typename Element>
struct RowsConfigOf : FlashConfigOf<copying_rows(kPrefillConfigs[kIndex]), Element> {
  static constexpr int kThreads = RowsConfigOf::FlashConfigOf::kThreads + kWarpgroupThreads;
};

template <typename Config>
struct RowsStorage : FlashStorage<Config, CacheTile> {
  // Of a tile's readers one is counted as K's loader.
  __device__ void init() {
    FlashStorage<Config, CacheTile>::init(kCopyingWarps - 1, 1, kCopyingWarps);
  }
};

// Of a thread of each kind, which has 168 at launch with one consumer, and 128 with two.
struct RowsRegisters {
  int producer;
  int copying;
  int consumer;
};
constexpr RowsRegisters rows_registers(int consumers) {
  return consumers == 1 ? RowsRegisters{40, 160, 240} : RowsRegisters{48, 64, 200};
}

template <int kIndex, typename Element>
__global__ void __launch_bounds__(RowsConfigOf<kIndex, Element>::kThreads, 1)
    prefill_rows(const __grid_constant__ Params p, const __grid_constant__ FlashTensorMaps maps,
                 const __grid_constant__ Launch launch) {
  using Config = RowsConfigOf<kIndex, Element>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<RowsStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const CacheSequences sequences(p, launch.others_tokens);
  set_up(p, maps, launch, [&] { shared.init(); });

  constexpr RowsRegisters kRegisters = rows_registers(Config::kConsumers);
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters.producer>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp == 1) {
      flash::schedule_tiles(shared, sequences, launch.schedule, launch.joins);
    } else if (threadIdx.x == 3 * 32) {
      flash::store(shared, p, maps.o);
    }
  } else if (warpgroup > Config::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters.copying>();
    copy_tiles(shared, p, launch, maps);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kRegisters.consumer>();
    flash::consume(shared, p, warpgroup - 1);
  }
  wait_for_launch_before();
}

}  // namespace prefill
}  // namespace tilewright::cuda
