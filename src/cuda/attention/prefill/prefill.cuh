// Prefill: attention of many new tokens, such as a chunk of a prompt, over KV caches (kernel
// prefill).
//
// New here, over flash: K and V come through a block table, a page's rows at a time. The lanes of a
// warp find where these lie, and one of them issues the loads. K and V have a warp each, since
// neither's place in SMEM waits for the other's. V has a stage more if there is room: its stages
// are needed again as soon as K's, but they are free later. All else is flash's: the consumers, the
// order of tiles, the store of O. Lengths come from memory, so that a captured graph may be
// replayed with others.
//
// Source    flash.cuh.
// Tiles     configs.hpp: Br = 128 rows of one head, 64 for each of two consumers; Bc = 64 or 128.
// SMEM      sQ Br x D, sK stages x Bc x D, sV v_stages x Bc x Dv, sO up to Br x Dv, 16-bit.
// Registers 40 for a thread of the producer and 232 for one of a consumer. Of a consumer's, Bc / 2
//           hold S, Bc / 4 hold P and Dv / 2 hold O.
//
//   warp 0            load_k: K tiles, and Q (TMA)
//   warp 1            schedule_tiles: finds the next tile by a ticket
//   warp 2            load_v: V tiles, likewise; writes zeros over rows that no query sees
//   warp 3, a thread  store: O, while the consumers compute the next tile (TMA)
//   consumers         issue QK(j), PV(j+1) | softmax of j | seldom: scale O. Key tile j runs from
//                     the last to the first. The consumers take turns (ping-pong)
//
// Layouts   128-byte swizzle, 64 columns a TMA load; 64-byte swizzle and 32 columns if D = 96.
// Limits    Packed sequences of few tokens may be left to the decode kernel (kernel.cpp).
// Worklog   docs/worklog/prefill.md
#pragma once

#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/configs.hpp"
#include "cuda/attention/prefill/load.cuh"
#include "cuda/attention/prefill/sequences.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace prefill {

// Config kIndex of the table.
template <int kIndex, typename Element>
using ConfigOf = FlashConfigOf<kPrefillConfigs[kIndex], Element>;

template <typename Config>
struct SharedStorage : FlashStorage<Config, CacheTile> {
  BoxPlace places[2][32];  // for the warps that load K and V
};

template <int kIndex, typename Element>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element>::kThreads, 1)
    prefill(const __grid_constant__ Params p, const __grid_constant__ FlashTensorMaps maps,
            const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const CacheSequences sequences(p, launch.others_tokens);
  set_up(p, maps, launch, [&] { shared.init(1); });

  run_roles<Config::kConsumers>(
      [&](int warp) {
        if (warp == 0) {
          load_k(shared, shared.k, shared.sK, p, launch, maps);
        } else if (warp == 1) {
          flash::schedule_tiles(shared, sequences, launch.schedule, launch.joins);
        } else if (warp == 2) {
          load_v(shared, shared.v, shared.sV, p, launch, maps.v);
        } else if (threadIdx.x % 32 == 0) {
          flash::store(shared, p, maps.o);
        }
      },
      [&](int consumer) { flash::consume(shared, p, consumer); });
  wait_for_launch_before();
}

}  // namespace prefill
}  // namespace tilewright::cuda
