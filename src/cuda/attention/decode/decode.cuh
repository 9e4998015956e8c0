// Decode: attention of few new tokens over long KV caches (kernel decode).
//
// Time goes into reading K and V once, so that everything serves to keep loads under way: tiles in
// flight in every SM, and an even share of all keys for every block, whatever the lengths of the
// sequences. Query heads that share a KV head, and new tokens, are rows of one tile. The tensor
// cores idle mostly; so warps work by themselves, each on its own keys, with no barrier among them
// before a part ends, and E4M3 values are widened in registers, between SMEM and tensor cores.
//
// Source    FlashDecoding; stream-K (Osama et al., 2023) for the even shares.
// Tiles     configs.hpp: 16, 32 or 64 rows; Bc = 64 keys. Each of 4 warps computes 16 rows and 16,
//           32 or all 64 keys of each tile. schedule.hpp says which block computes what.
// SMEM      stages x Bc x (D + Dv) of the caches' type; in clusters, a slice of O of half the rows.
// Registers where an SM has two blocks, 200 for a thread that computes and 56 for one that loads;
//           elsewhere up to 255. Dv / 2 hold O and D / 4 hold Q.
//
//   warps 0 to 3      compute (attend.cuh): S = Q K^T | softmax | O += P V, tile by tile. At a
//                     part's end their results are merged, with other blocks' too (results.cuh)
//   warp 4            finds the block's parts, from the lengths in memory (walk.cuh)
//   warps 5 and 6     load K and V (load.cuh)
//
// Layouts   K and V as TMA's widest swizzle has them that divides a row (fragments.cuh).
// Worklog   docs/worklog/decode.md
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/attention/decode/attend.cuh"
#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/load.cuh"
#include "cuda/attention/decode/results.cuh"
#include "cuda/attention/decode/walk.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace decode {

// Loads the tiles of the block's parts, of K or of V. A warp calls it.
template <typename Config, typename Tile>
__device__ void load(SharedStorage<Config>& shared, const Params& p, const Launch& launch,
                     const CacheSide<Config>& side) {
  typename Config::Position at;
  PartRing::Position at_part;
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    if (part.is_end) {
      break;
    }
    load_part<Config, Tile>(p, launch, side, part, at);
    __syncwarp();  // no lane reads the part any more
    shared.parts.release(at_part);
    at_part.advance();
  }
}

// The warp that loads K, or V. Where their rows are as long, both run the same code.
template <typename Config>
__device__ void load_keys_or_values(SharedStorage<Config>& shared, const Params& p,
                                    const Launch& launch, const TensorMaps& maps, bool is_v) {
  using TileK = typename Config::TileK;
  using TileV = typename Config::TileV;
  const CacheSide<Config> side{.map = is_v ? maps.v : maps.k,
                               .base = is_v ? p.v_cache : p.k_cache,
                               .stride = is_v ? p.v_stride : p.k_stride,
                               .descale = is_v ? p.v_descale : p.k_descale,
                               .ring = is_v ? shared.v : shared.k,
                               .tiles = shared.tiles[0] + (is_v ? TileK::kTile_bytes : 0),
                               .descales = shared.descales[0][is_v]};
  if (cute::is_same_v<TileK, TileV> || !is_v) {
    load<Config, TileK>(shared, p, launch, side);
  } else {
    load<Config, TileV>(shared, p, launch, side);
  }
}

// A descale of the whole sequence, if there is one.
__device__ inline float descale_of(const Descales& descale, const Part& part) {
  return descale.data != nullptr && descale.per != Descales::Per::row
             ? descale
                   .data[part.sequence * descale.stride.batch + part.kv_head * descale.stride.head]
             : 1.0f;
}

// Computes a part's tiles. The last one stays as it is until the caller releases it.
template <typename Config>
__device__ __forceinline__ void compute_part(SharedStorage<Config>& shared, const Params& p,
                                             const Launch& launch, const Part& part,
                                             const WarpPlace<Config>& place,
                                             WarpResult<Config>& result,
                                             typename Config::Position& at) {
  const MatrixPlaces<Config::TileK::kRow_bytes, false> places_k;
  const MatrixPlaces<Config::TileV::kRow_bytes, true> places_v;
  const bool scales_k = Config::kIsE4m3 && p.k_descale.per == Descales::Per::row;
  const bool scales_v = Config::kIsE4m3 && p.v_descale.per == Descales::Per::row;
  const float scale = Config::kIsE4m3 ? p.scale * descale_of(p.k_descale, part) : p.scale;
  const float scale_log2 = p.softcap > 0.0f ? kLog2e : scale_to_log2(scale);
  const QueryFragments<Config> q(shared, p, launch, part, place);

#pragma unroll 1
  for (int j = part.tiles.first; j < part.tiles.end; ++j) {
    const std::uint32_t tile_k = cute::cast_smem_ptr_to_uint(shared.tiles[at.stage]);
    const std::uint32_t tile_v = tile_k + Config::TileK::kTile_bytes;
    const auto& descales = shared.descales[at.stage];
    shared.k.wait(at);
#pragma unroll 1
    for (int row0 = place.key0; row0 < place.key0 + Config::kWarpKeys; row0 += kStepKeys) {
      const int first = j * kDecodeTileKeys + row0;
      const int end = first + kStepKeys;
      if (first >= part.end || end <= part.first) {
        continue;
      }
      Scores s;
      compute_scores<Config>(s, q, places_k, tile_k, row0);
      if (scales_k) {
        scale_keys(s, descales[0] + row0, place);
      }
      if (p.softcap > 0.0f) {
        cap(s, scale, p.softcap);
      }
      const bool is_masked = first < part.whole_first || end > part.whole_end;
      const std::uint32_t seen = is_masked ? mask(s, p, launch, part, place, first) : 0;
      softmax_step(s, result, scale_log2);
      shared.v.wait(at);
      if (scales_v) {
        scale_keys(s, descales[1] + row0, place);
      }
      if (is_masked) {
        add_values<Config, true>(result, s, places_v, tile_v, row0, place, seen);
      } else {
        add_values<Config, false>(result, s, places_v, tile_v, row0, place, seen);
      }
    }
    shared.v.wait(at);
    __syncwarp();
    if (j + 1 < part.tiles.end) {
      shared.k.release(at);
      shared.v.release(at);
      at.advance();
    }
  }

  const float descale_v = Config::kIsE4m3 ? descale_of(p.v_descale, part) : 1.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    result.l[half] += __shfl_xor_sync(0xffffffffu, result.l[half], 1);
    result.l[half] += __shfl_xor_sync(0xffffffffu, result.l[half], 2);
    result.m[half] *= scale_log2 / kLog2e;
  }
  if constexpr (Config::kIsE4m3) {
#pragma unroll
    for (auto& o : result.o) {
      for (float& value : o) {
        value *= descale_v;
      }
    }
  }
}

// Waits until all blocks of the cluster have set up their barriers. Every thread calls it. Where
// there are no clusters it would be a barrier of the block, for which the warps that load come too
// late.
template <typename Config>
__device__ void wait_for_cluster(const Launch& launch) {
  if (Config::kMayCluster && launch.workers.cluster > 1) {
    cute::cluster_wait();
  }
}

// The consumer: four warps, which compute one part after another.
template <typename Config>
__device__ void consume(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  const WarpPlace<Config> place;
  typename Config::Position at;
  PartRing::Position at_part;
  std::uint32_t exchanges = 0;
  wait_for_cluster<Config>(launch);
  while (true) {
    const Part& part = shared.parts.wait(at_part);
    if (part.is_end) {
      break;
    }
    const bool has_keys = part.tiles.first < part.tiles.end;
    WarpResult<Config> result{.o = {}, .m = {kMinusInf, kMinusInf}, .l = {}};
    float4* tile = nullptr;
    if (has_keys) {
      compute_part(shared, p, launch, part, place, result, at);
      tile = reinterpret_cast<float4*>(shared.tiles[at.stage]);
    }
    Finish<Config>(shared, p, launch, part, tile).run(result, exchanges);
    if (has_keys) {
      cutlass::arch::fence_view_async_shared();  // before TMA writes where results were
      __syncwarp();
      shared.k.release(at);
      shared.v.release(at);
      at.advance();
    }
    __syncwarp();
    shared.parts.release(at_part);
    at_part.advance();
  }
}

// Sets up the barriers. One thread calls it.
template <typename Config>
__device__ void set_up(SharedStorage<Config>& shared, const Params& p, const Launch& launch) {
  for (int stage = 0; stage < Config::kStages; ++stage) {
    shared.k.full[stage].init(arrivals_of(launch, p.k_descale));
    shared.v.full[stage].init(arrivals_of(launch, p.v_descale));
    shared.k.empty[stage].init(kDecodeWarps);
    shared.v.empty[stage].init(kDecodeWarps);
  }
  shared.parts.init(kDecodeWarps + 2);  // and the warps that load K and V
  if constexpr (Config::kMayCluster) {
    shared.exchange.written.init(1);
    shared.exchange.read.init(launch.workers.cluster);
  }
  cutlass::arch::fence_barrier_init();
}

template <int kIndex, typename Element, typename CacheElement>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element, CacheElement>::kThreads,
                                  kDecodeConfigs[kIndex].blocks_per_sm)
    decode(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
           const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element, CacheElement>;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  constexpr int kSm_bytes = 228 * 1024;  // each block has 1 KB of its own beside its SMEM
  static_assert(Config::C.blocks_per_sm * (sizeof(shared) + 1024) <= kSm_bytes);
  if (threadIdx.x == 0) {
    set_up(shared, p, launch);
  } else if (threadIdx.x == 32 && launch.loads_boxes) {
    cute::prefetch_tma_descriptor(&maps.k);
    cute::prefetch_tma_descriptor(&maps.v);
  }
  let_next_launch_start();
  if (Config::kMayCluster && launch.workers.cluster > 1) {
    cute::cluster_arrive_relaxed();  // barriers are set up; who uses others' waits for them
  }
  __syncthreads();
  wait_for_launch_before();

  constexpr bool kSharesSm = Config::C.blocks_per_sm > 1;
  const int warp = cutlass::canonical_warp_idx_sync();
  if (warp < kDecodeWarps) {
    if constexpr (kSharesSm) {
      cutlass::arch::warpgroup_reg_alloc<200>();
    }
    consume<Config>(shared, p, launch);
  } else {
    if constexpr (kSharesSm) {
      cutlass::arch::warpgroup_reg_dealloc<56>();
    }
    if (warp == kDecodeWarps) {
      find_parts(shared.parts, p, launch);
    } else if (warp < kDecodeWarps + 3) {
      load_keys_or_values<Config>(shared, p, launch, maps, warp == kDecodeWarps + 2);
    }
    wait_for_cluster<Config>(launch);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
