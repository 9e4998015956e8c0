// Prefill over E4M3 caches (kernel prefill, where caches have E4M3 values).
//
// New here, over prefill: TMA brings tiles of bytes, and a warpgroup of its own widens them to the
// tiles of 16 bits that the consumers read. Widening is exact. The descales of a sequence and KV
// head are factors of its scores and of O. Where they are powers of two, all bits are those that
// prefill gives over the dequantised cache, unless D = 192, where key tiles are smaller. Rows that
// nobody sees need no zeros, since a NaN in a cache counts as 480.
//
// Source    prefill.cuh.
// Tiles     e4m3_configs.hpp: Br = 64 rows of one head for each of two consumers, or for the only
//           one if D = 256; Bc = 64 or 128.
// SMEM      as in prefill; and sCodedK coded_k x Bc x D, sCodedV coded_v x Bc x Dv, bytes.
// Registers 48 for a thread of the producer, 64 for one that widens and 200 for one of a consumer;
//           40, 160 and 240 with one consumer.
//
//   warp 0            load_k: bytes of K, and Q if it has 16 bits (TMA)
//   warp 1            schedule_tiles
//   warp 2            load_v: bytes of V
//   warp 3, a thread  store: O
//   4 warps           widen_tiles: K(j), V(j+1), and E4M3 queries, from memory
//   consumers         issue QK(j), PV(j+1) | softmax of j
//
// Layouts   Rows of bytes lie one behind the other, without a swizzle; widened tiles as in prefill.
// Limits    Descales of each row are not taken, nor pages whose rows TMA cannot place (plan.cpp).
// Worklog   docs/worklog/prefill.md
#pragma once

#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/prefill/e4m3_configs.hpp"
#include "cuda/attention/prefill/load.cuh"
#include "cuda/attention/prefill/widen.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace prefill {

// Config kIndex of the table.
template <int kIndex, typename Element>
struct CodedConfigOf : FlashConfigOf<kPrefillE4m3Configs[kIndex], Element> {
  static constexpr int kThreads = CodedConfigOf::FlashConfigOf::kThreads + kWarpgroupThreads;
};

template <typename Config>
struct CodedStorage : FlashStorage<Config, CodedTile> {
  static constexpr auto C = Config::C;
  static constexpr int kWideningWarps = kWarpgroupThreads / 32;
  alignas(128) std::uint8_t sCodedK[C.coded_k][C.bc * C.head_dim];
  alignas(128) std::uint8_t sCodedV[C.coded_v][C.bc * C.value_dim];
  TmaRing<C.coded_k> coded_k;
  TmaRing<C.coded_v> coded_v;
  BoxPlace places[2][32];  // for the warps that load K and V

  __device__ void init(bool widens_q) {
    coded_k.init(kWideningWarps);
    coded_v.init(kWideningWarps);
    FlashStorage<Config, CodedTile>::init(1 + kWideningWarps, widens_q ? kWideningWarps : 1,
                                          kWideningWarps);
  }
};

// Of a thread of each kind, which has 168 at launch with one consumer, and 128 with two.
struct CodedRegisters {
  int producer;
  int widening;
  int consumer;
};
constexpr CodedRegisters coded_registers(int consumers) {
  return consumers == 1 ? CodedRegisters{40, 160, 240} : CodedRegisters{48, 64, 200};
}

template <int kIndex, typename Element>
__global__ void __launch_bounds__(CodedConfigOf<kIndex, Element>::kThreads, 1)
    prefill_e4m3(const __grid_constant__ Params p, const __grid_constant__ FlashTensorMaps maps,
                 const __grid_constant__ Launch launch) {
  using Config = CodedConfigOf<kIndex, Element>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<CodedStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const CodedSequences sequences(p, launch.others_tokens, launch.kv_heads);
  if (threadIdx.x == 0) {
    shared.init(p.dtype == DType::e4m3);
  } else if (threadIdx.x == 32) {
    flash::prefetch(maps, p.statistics.max == nullptr);
  }
  let_next_launch_start();
  __syncthreads();
  if (!launch.joins) {
    wait_for_launch_before();
  }

  constexpr CodedRegisters kRegisters = coded_registers(Config::kConsumers);
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters.producer>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp == 0) {
      load_k(shared, shared.coded_k, shared.sCodedK, p, launch, maps);
    } else if (warp == 1) {
      flash::schedule_tiles(shared, sequences, launch.schedule, launch.joins);
    } else if (warp == 2) {
      load_v(shared, shared.coded_v, shared.sCodedV, p, launch, maps.v);
    } else if (threadIdx.x % 32 == 0) {
      flash::store(shared, p, maps.o);
    }
  } else if (warpgroup > Config::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters.widening>();
    widen_tiles(shared, p);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kRegisters.consumer>();
    flash::consume(shared, p, warpgroup - 1);
  }
  wait_for_launch_before();
}

}  // namespace prefill
}  // namespace tilewright::cuda
