// A block of the decode kernels: its barriers, its roles, and the consumer's walk over parts.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/load.cuh"
#include "cuda/attention/decode/prefetch.cuh"
#include "cuda/attention/decode/results.cuh"
#include "cuda/attention/decode/walk.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace decode {

// Waits until all blocks of the cluster have set up their barriers. Every thread calls it. Where
// there are no clusters it would be a barrier of the block, for which the warps that load come too
// late.
template <typename Config>
__device__ void wait_for_cluster(const Launch& launch) {
  if (Config::kMayCluster && launch.workers.cluster_log2 > 0) {
    cute::cluster_wait();
  }
}

// Whether the part was a guess that turned out to be wrong: it is computed, but has no results.
// That is mostly known before the first key has come.
template <typename Config>
__device__ __forceinline__ bool is_void(SharedStorage<Config>& shared, const Part& part) {
  if (part.is_guess) {
    shared.judged.wait(0);
    return part.is_void;
  }
  return false;
}

// The consumer, which computes one part after another.
template <typename Config, typename Compute>
__device__ void consume(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  Compute compute(shared, p, launch);
  PartRing::Position at_part;
  std::uint32_t exchanges = 0;
  wait_for_cluster<Config>(launch);
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    if (part.is_end) {
      break;
    }
    typename Compute::Result result;
    const bool has_results = !is_void<Config>(shared, part);
    if (has_results && exchanges > 0) {
      allow_exchange<Config>(shared, launch);
    }
    const auto pieces = compute.run(part, result);
    if (has_results) {
      Finish<Config, typename Compute::Pieces>(shared, p, launch, part, pieces).run(exchanges);
      if (!Config::kIsFull && part.is_last) {
        break;
      }
    }
    compute.release(pieces);
    __syncwarp();
    shared.parts.release(at_part);
    at_part.advance();
    wait_for_launch_before();
  }
}

// Sets up the barriers. The block's first kSetUpWarps warps call it, each for a quarter of the
// stages' barriers: a lane has one, and a warp sets up those of its lanes one after the other.
inline constexpr int kSetUpWarps = 4;
template <typename Config, typename Compute>
__device__ void set_up(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  static_assert(Config::kStages <= 32);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int stage = threadIdx.x % 32;
  auto& ring = warp % 2 == 0 ? shared.k : shared.v;
  if (stage < Config::kStages) {
    if (warp < 2) {
      ring.full[stage].init(arrivals_of(launch, warp == 0 ? p.k_descale : p.v_descale));
    } else {
      ring.empty[stage].init(Config::kTileWarps);
    }
  }
  if (threadIdx.x == 0) {
    shared.parts.init(Config::kConsumerWarps + Compute::kLoadWarps);
    shared.asked.init(1);
    shared.judged.init(1);
    Compute::set_up(shared);
    if constexpr (Config::kMayCluster) {
      shared.exchange.written.init(1);
      shared.exchange.read.init(launch.workers.cluster());
    }
  }
  cutlass::arch::fence_barrier_init();
  if (threadIdx.x == 0) {
    put_empty_part(shared.parts);
  }
}

// What a block does. `Compute` is the consumer's form: it computes a part's tiles (run), leaves
// what Finish merges, and releases the tiles where that lay.
template <typename Config, typename Compute>
__device__ __forceinline__ void run_block(const Params& p, const TensorMaps& maps,
                                          const Launch& launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  constexpr int kSm_bytes = 228 * 1024;  // each block has 1 KB of its own beside its SMEM
  static_assert(Config::C.blocks_per_sm * (sizeof(shared) + 1024) <= kSm_bytes);
  // Named barriers, beside the consumer's. The finder waits for the warps that set the block's
  // barriers up only when it has found a part, and the warps that load K and V when they have
  // brought tiles to L2; all other warps wait at once.
  constexpr std::uint32_t kIsSetUp = 5;
  constexpr std::uint32_t kFinderMayGoOn = 6;
  constexpr std::uint32_t kLoadersMayGoOn = 7;
  constexpr int kFinderThreads = 32 * (kSetUpWarps + 1);
  constexpr int kLoaderThreads = 32 * (kSetUpWarps + 2);
  constexpr int kOtherThreads = Config::kThreads - 32 * 3;
  const int warp = cutlass::canonical_warp_idx_sync();
  const int loader = warp - Config::kConsumerWarps;
  if (Config::kMayCluster && launch.workers.cluster_log2 > 0 && warp >= kSetUpWarps) {
    cute::cluster_arrive_relaxed();
  }
  if (!launch.next_may_join) {
    let_next_launch_start();
  }
  if (warp < kSetUpWarps) {
    set_up<Config, Compute>(shared, p, launch);
    if (Config::kMayCluster && launch.workers.cluster_log2 > 0) {
      cute::cluster_arrive_relaxed();  // barriers are set up; who uses others' waits for them
    }
    cutlass::arch::NamedBarrier::arrive(kFinderThreads, kFinderMayGoOn);
    cutlass::arch::NamedBarrier::arrive(kLoaderThreads, kLoadersMayGoOn);
  } else if (threadIdx.x == 32 * (Config::kConsumerWarps + 1) && launch.loads_boxes) {
    cute::prefetch_tma_descriptor(&maps.k);
    cute::prefetch_tma_descriptor(&maps.v);
  }
  const bool loads_keys_or_values = loader == 1 || loader == 2;
  if (loader != 0 && !loads_keys_or_values) {
    cutlass::arch::NamedBarrier::sync(kOtherThreads, kIsSetUp);
  }

  if (warp < Config::kConsumerWarps) {
    if constexpr (Compute::kConsumerRegisters > 0) {
      cutlass::arch::warpgroup_reg_alloc<Compute::kConsumerRegisters>();
    }
    consume<Config, Compute>(shared, p, launch);
  } else {
    if constexpr (Compute::kConsumerRegisters > 0) {
      cutlass::arch::warpgroup_reg_dealloc<Compute::kLoadRegisters>();
    }
    if (loader == 0 && p.batch > Config::kMostKnown) {
      prefetch_lengths(p);
    } else if (loader == 1) {
      prefetch_table(p);
    }
    const bool rehearses = loader == 3;  // executes the finder's code ahead of the finder
    if (loader == 0 || rehearses) {
      find_parts<Config>(shared, p, launch, rehearses ? &shared.rehearsed : nullptr,
                         [] { cutlass::arch::NamedBarrier::sync(kFinderThreads, kFinderMayGoOn); });
    }
    if (loads_keys_or_values) {
      load_keys_or_values<Config>(shared, p, launch, maps, loader == 2, [] {
        cutlass::arch::NamedBarrier::sync(kLoaderThreads, kLoadersMayGoOn);
      });
    } else if constexpr (Compute::kLoadWarps == 3) {
      if (rehearses) {
        Compute::load_queries(shared, p, launch, maps);
      }
    }
    wait_for_cluster<Config>(launch);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
