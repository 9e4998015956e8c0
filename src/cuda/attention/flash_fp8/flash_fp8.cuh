// Flash_fp8: the production forward attention on FP8 (kernel flash_fp8).
//
// K8's loop in flash's persistent blocks: a block computes one tile of query rows after another,
// while other warps find and load the next tile and store the O of the one before. The features
// (masks, soft cap, sinks, packed sequences, splits, un-normalised O) are chosen at run time. A
// plain problem, with no feature beyond a causal mask and at D = 256 without descales of 64 rows,
// runs a kernel that is compiled without the others.
//
// Source    flash.cuh, ladder/k8.cu. O's units, and sums of weights by the tensor cores, are our
//           own.
// Tiles     configs.hpp: Br = 64 rows for each of 2 or, at D = 64 and 128, 3 consumers; Bc = 128.
// SMEM      sQ Br x D, sK and sV (V^T) stages x 128 x D E4M3; sO Br x D in 16 bits: 88, 176, 224 KB
//           at D = 64, 128, 256 with two consumers, 100, 200 KB with three; 4, 4, 2 stages; 4 KB of
//           ones where they are summed (+ barriers, tiles and descales).
// Registers 40 for a thread of the producer and 232 for one of a consumer; with three consumers 40
//           and 152 at D = 64, 32 and 160 at D = 128. Of a consumer's, D / 2 hold O, 64 hold S and
//           16 hold P. At D = 64 and 128 two consumers have D / 2 more for P V of a tile. Three
//           have it in S's. At D = 128 these, and at D = 256 two, have P V of 64 columns in half of
//           S's, and that of the next 64 in the other. Sums of weights take 4 more beside the
//           first.
//
//   warp 0, a thread  load: descales, K, Q, V as soon as a stage is free (TMA)
//   warp 1            schedule_tiles: finds the next tile, by the block's index or by a ticket
//   warp 2            clear_unseen: writes zeros over values that no query sees
//   warp 3, a thread  store: O, while the consumers compute the next tile (TMA)
//   consumers         K8's loop. Three keep their turn until S is there. At D = 256, in a turn:
//
//     tensor cores    PV(j+1) 0 | 1 | 2 | 3 |       | QK(j)      | the other consumer's turn
//     the consumer                | O 0 | O 1 | O 2 | O 3 | waits      | softmax j
//
// Sums      In a plain problem at D = 64 or 128 of which O alone is wanted, O is divided by the sum
//           of the weights as they were rounded: eight rows of ones lie in front of a stage of V^T,
//           so that P V begins with eight columns of sums of P. The other kernels add up the
//           weights before they are rounded.
// Layouts   as of K8: V^T with its keys in order, a K tile's even keys first. In a packed tensor a
//           sequence may begin at an odd row, and then its even keys are the tensor's odd rows; its
//           values begin at a multiple of 16 columns (common/columns.hpp).
// Limits    D = 64, 128 or 256. V comes transposed. O in BF16 or FP16, or in FP32 where it is
//           un-normalised.
// Worklog   docs/worklog/flash-fp8.md
#pragma once

#include "cuda/attention/blocks/flash_producer.cuh"
#include "cuda/attention/blocks/problem_kind.cuh"
#include "cuda/attention/flash_fp8/consume.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {
namespace flash_fp8 {

// Loads the even keys of a tile, then the odd ones. They begin at row `row` of the tensor.
template <typename Config>
__device__ void load_keys(SharedStorage<Config>& shared, const TensorMaps& maps,
                          const typename Config::Position& at, int row, int head, int batch) {
  constexpr FlashConfig C = Config::C;
  TmaBarrier& full = shared.k.acquire(at, sizeof(shared.sK[0]));
#pragma unroll 1
  for (int odd = 0; odd < 2; ++odd) {
    const int first = row + odd;
    load_box<C.bc, C.head_dim, Config::Tiles::kBoxColumns>(
        maps.keys[first % 2], full, shared.sK[at.stage], odd * C.bc / 2, first / 2, head, batch);
  }
}

// Loads 128 keys of V^T. Their first column is a multiple of 16, as TMA needs it.
template <typename Config, bool kMayClear>
__device__ void load_values(SharedStorage<Config>& shared, const TensorMaps& maps,
                            const typename Config::Position& at, const Tile& tile, int j) {
  constexpr FlashConfig C = Config::C;
  TmaBarrier& full = kMayClear && flash::has_unseen<C>(tile, j) ? shared.uncleared[at.stage]
                                                                : shared.v.full[at.stage];
  shared.v.acquire(at, full, C.bc * C.head_dim);
  constexpr auto kNoHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
  SM90_TMA_LOAD_4D::copy(&maps.v, reinterpret_cast<std::uint64_t*>(&full), kNoHint,
                         shared.values(at.stage), tile.value_start + j * C.bc, 0, tile.kv_head,
                         tile.kv_batch);
}

// One thread loads all that the consumers read.
template <typename Config, bool kIsPlain>
__device__ void load(SharedStorage<Config>& shared, const AttentionFp8Params& p,
                     const TensorMaps& maps) {
  typename Config::Position at;
  for (int count = 0;; ++count) {  // tiles
    const Tile& tile = shared.tiles.wait(tile_position(count));
    if (tile.is_end) {
      break;
    }
    if (tile.kv_end <= tile.kv_first) {  // no key is seen
      shared.tiles.want_next(tile_position(count));
      flash::load_q(shared, maps.q, tile, q_position(count));
    } else {
      DescaleWalk descales;
      const auto fetch_descales = [&](int j) {
        descales.fetch(p, tile.descales, tile.kv_len, j, shared.descales.at(at));
      };
      fetch_descales(tile.kv_end - 1);
#pragma unroll 1  // each load is in the code once, which takes few registers
      for (int j = tile.kv_end - 1; j >= tile.kv_first; --j) {
        if (j == min(tile.kv_end, tile.kv_first + flash::kTilesAhead) - 1) {
          shared.tiles.want_next(tile_position(count));
        }
        descales.finish(shared.descales.at(at));
        load_keys(shared, maps, at, tile.kv_start + j * Config::C.bc, tile.kv_head, tile.kv_batch);
        if (j == tile.kv_end - 1) {
          flash::load_q(shared, maps.q, tile, q_position(count));
        }
        load_values<Config, !kIsPlain>(shared, maps, at, tile, j);
        at.advance();
        if (j > tile.kv_first) {
          fetch_descales(j - 1);
        }
      }
    }
    shared.tiles.release(tile_position(count));
  }
}

// All threads write the rows of ones, which stay.
template <typename Config>
__device__ void write_ones(SharedStorage<Config>& shared) {
  constexpr std::uint32_t kFourOnes = 0x38383838;
  constexpr int kWords = Config::kSumRows * Config::C.bc / 4;
  for (int i = threadIdx.x; i < Config::C.stages * kWords; i += Config::kThreads) {
    reinterpret_cast<std::uint32_t*>(shared.sV[i / kWords])[i % kWords] = kFourOnes;
  }
  cutlass::arch::fence_view_async_shared();
}

// A warp writes zeros over the keys of a tile of V^T that are outside [first, end), for GEMMs to
// read. Rows of 128 bytes are swizzled: the number of a 16-byte chunk is XORed with the row's.
template <typename Config>
__device__ void clear_keys(float_e4m3_t* sV, int first, int end) {
  constexpr int kBc = Config::C.bc;
  auto* const words = reinterpret_cast<std::uint32_t*>(sV);
  for (int i = threadIdx.x % 32; i < Config::C.head_dim * kBc / 4; i += 32) {
    const int row = i / (kBc / 4);
    const int chunk = (i / 4 ^ row) % 8;
    const int key = 16 * chunk + i % 4 * 4;
    std::uint32_t seen = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      seen |= key + k >= first && key + k < end ? 0xffu << 8 * k : 0u;
    }
    if (seen != 0xffffffffu) {
      words[i] &= seen;
    }
  }
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
}

// A thread lets TMA bring what its block needs of the tensor maps.
__device__ inline void prefetch(const TensorMaps& maps, bool stores_by_tma) {
  prefetch_tma_descriptor(&maps.keys[0]);
  prefetch_tma_descriptor(&maps.keys[1]);
  prefetch_tma_descriptor(&maps.q);
  prefetch_tma_descriptor(&maps.v);
  if (stores_by_tma) {
    prefetch_tma_descriptor(&maps.o);
  }
}

template <int kIndex, typename Output, bool kIsPlain, bool kSumsRounded>
__global__ void __launch_bounds__(ConfigOf<kIndex, Output, kSumsRounded>::kThreads, 1)
    flash_fp8(const __grid_constant__ AttentionFp8Params params,
              const __grid_constant__ TensorMaps maps,
              const __grid_constant__ FlashSchedule schedule) {
  constexpr ProblemKind kKind = kIsPlain ? ProblemKind::plain : ProblemKind::any;
  decltype(auto) p = with_constants<kKind>(params);
  using Config = ConfigOf<kIndex, Output, kSumsRounded>;
  const Sequences sequences(p);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  constexpr int kMost_bytes = 227 * 1024;
  static_assert(sizeof(shared) <= kMost_bytes);
  const bool may_clear =
      !kIsPlain && (p.kv_lengths.cu_seqlens || p.kv_lengths.used || p.window.left < p.kv_len);

  if (threadIdx.x == 32) {  // another thread than the one that sets up barriers
    prefetch(maps, p.statistics.max == nullptr);
  }
  if (threadIdx.x == 0) {
    shared.init(may_clear);
  }
  if constexpr (Config::kSumRows > 0) {
    write_ones(shared);
  }
  __syncthreads();  // the barriers and the ones are ready

  run_roles<Config::kConsumers, Config::kRegisters>(
      [&](int warp) {
        if (warp == 0 && threadIdx.x == 0) {
          load<Config, kIsPlain>(shared, p, maps);
        } else if (warp == 1) {
          flash::schedule_tiles(shared, sequences, schedule);
        } else if (warp == 2 && may_clear) {
          flash::clear_unseen(shared, [](auto* sV, int first, int end) {
            clear_keys<Config>(sV + Config::kSumRows * Config::C.bc, first, end);
          });
        } else if (warp == 3 && threadIdx.x % 32 == 0) {
          flash::store(shared, p, maps.o);
        }
      },
      [&](int consumer) { consume<Config, Output, kIsPlain>(shared, p, consumer); });
}

}  // namespace flash_fp8
}  // namespace tilewright::cuda
