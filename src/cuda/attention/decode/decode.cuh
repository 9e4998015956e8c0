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
//           184 and 72 with 16 rows; elsewhere up to 255. Dv / 2 hold O and D / 4 hold Q.
//
//   warps 0 to 3      compute (warps.cuh): S = Q K^T | softmax | O += P V, tile by tile. At a
//                     part's end their results are merged, with other blocks' too (results.cuh)
//   warp 4            finds the block's parts, from the lengths in memory (walk.cuh)
//   warps 5 and 6     bring the tiles to L2 that they guess to be first (prefetch.cuh), and load K
//                     and V (load.cuh)
//
// Layouts   K and V as TMA's widest swizzle has them that divides a row (fragments.cuh).
// Worklog   docs/worklog/decode.md
#pragma once

#include "cuda/attention/decode/block.cuh"
#include "cuda/attention/decode/warps.cuh"

namespace tilewright::cuda {
namespace decode {

template <int kIndex, typename Element, typename CacheElement, bool kIsInvariant>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element, CacheElement, kIsInvariant>::kThreads,
                                  kDecodeConfigs[kIndex].blocks_per_sm)
    decode(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
           const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element, CacheElement, kIsInvariant>;
  run_block<Config, WarpsCompute<Config>>(p, maps, launch);
}

}  // namespace decode
}  // namespace tilewright::cuda
