// Flash: the production forward attention (kernel flash).
//
// New here, over K6: blocks are persistent. A block computes one tile of query rows after another.
// While its consumers compute a tile, other warps load the first keys of the next tile and store
// the O of the previous one. The features (masks, soft cap, sinks, packed sequences, splits,
// un-normalised O) are chosen at run time. A key tile that needs neither mask nor soft cap takes a
// step without their code. A problem with no feature beyond a causal mask runs a kernel that is
// compiled without the others (plain.cuh). A consumer skips key tiles that its rows do not see.
//
// Source    FlashAttention-3 paper, sections 3.1 and 3.2; attention sinks: Xiao et al., 2023.
// Tiles     configs.hpp: Br = 64 rows for each of 1 to 3 consumers; Bc = 64 to 176 keys.
// SMEM      sQ Br x D, sK stages x Bc x D, sV stages x Bc x Dv, sO up to Br x Dv, 16-bit.
// Registers 40 for a thread of the producer and 232 for one of a consumer, or 32 and 160 with three
//           consumers. Of a consumer's, Bc / 2 hold S, Bc / 4 hold P and Dv / 2 hold O.
//
//   warp 0, a thread  load: K, Q, then K and V alternately, as soon as a stage is free (TMA)
//   warp 1            schedule_tiles: finds the next tile, by the block's index or by a ticket
//   warp 2            clear_unseen: writes zeros over values that no query sees; it mostly idles
//   warp 3, a thread  store: O, while the consumers compute the next tile (TMA)
//   consumers         K6's loop: issue QK(j), PV(j+1) | softmax of j | seldom: scale O. Key tile j
//                     runs from the last to the first. The consumers take turns (ping-pong)
//
// In a cluster, two blocks need the same keys. Each loads half of every K and V tile, for both.
//
// Layouts   128-byte swizzle, 64 columns a TMA load; 64-byte swizzle and 32 columns if D = 96.
// Worklog   docs/worklog/flash.md
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/lazy_softmax.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/attention/blocks/tile_tickets.cuh"
#include "cuda/attention/flash/config.cuh"
#include "cuda/attention/flash/finish.cuh"
#include "cuda/attention/flash/plain.cuh"
#include "cuda/attention/flash/tiles.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace flash {

using namespace cute;

// How many key tiles are still to be loaded when the loading thread asks for the next tile.
constexpr int kTilesAhead = 2;

// Does key tile j hold values that no query of the sequence sees? There are none in a plain
// problem, nor where the blocks of a cluster share key tiles.
template <FlashConfig C, bool kIsPlain>
__device__ bool has_unseen(const FlashTile& tile, int j) {
  return C.cluster == 1 && !kIsPlain &&
         (tile.seen_first > j * C.bc || tile.seen_end < (j + 1) * C.bc);
}

// One thread loads all that the consumers read, in the order in which they read it: each V tile
// comes one tile later than its K tile.
template <typename Config, bool kIsPlain>
__device__ void load(SharedStorage<Config>& shared, const TensorMaps& maps) {
  constexpr FlashConfig C = Config::C;
  constexpr int kBox = Config::Tiles::kBoxColumns;
  typename Config::Position at, at_v;
  RingPosition<1> at_q;
  TilePosition at_tile;

  const auto load_k = [&](const FlashTile& tile, int j) {
    TmaBarrier& full = shared.k.acquire(at, sizeof(shared.sK[0]));
    tma_load_shared_tile<C.cluster, C.bc, C.head_dim, kBox>(
        maps.k, full, shared.sK[at.stage], tile.kv_start + j * C.bc, tile.kv_head, tile.kv_batch);
  };
  const auto load_v = [&](const FlashTile& tile, int j) {
    TmaBarrier& full =
        has_unseen<C, kIsPlain>(tile, j) ? shared.uncleared[at_v.stage] : shared.v.full[at_v.stage];
    shared.v.acquire(at_v, full, sizeof(shared.sV[0]));
    tma_load_shared_tile<C.cluster, C.bc, C.value_dim, kBox>(
        maps.v, full, shared.sV[at_v.stage], tile.kv_start + j * C.bc, tile.kv_head, tile.kv_batch);
  };

  while (true) {
    const FlashTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    const int last = tile.kv_end - 1;
    const int announced = max(min(last, tile.kv_first + kTilesAhead), tile.kv_first - 1);
    at_v = at;
#pragma unroll 1  // each load is in the code once, which takes few registers
    for (int j = last; j >= tile.kv_first - 1; --j) {
      if (j == announced) {
        shared.tiles.want_next(at_tile);
      }
      if (last < tile.kv_first) {
        break;  // no key is seen: there is nothing to load
      }
      if (j >= tile.kv_first) {
        load_k(tile, j);
      }
      if (j == last) {
#pragma unroll 1
        for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
          TmaBarrier& full = shared.q[consumer].acquire(at_q, sizeof(shared.sQ[0]));
          tma_load_tile<kWarpgroupRows, C.head_dim, kBox>(
              maps.q, full, shared.sQ[consumer],
              tile.q_start + tile.row0 + consumer * kWarpgroupRows, tile.head, tile.batch);
        }
        at_q.advance();
      } else {
        load_v(tile, j + 1);
        at_v = at;
      }
      if (j >= tile.kv_first) {
        at.advance();
      }
    }
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

// One warp finds the tiles that this block computes. It takes a ticket only when few loads of the
// tile before are left: a block in the middle of a long tile leaves the next one to others.
template <typename Config>
__device__ void schedule_tiles(SharedStorage<Config>& shared, const AttentionParams& p,
                               const FlashSchedule& schedule) {
  constexpr FlashConfig C = Config::C;
  constexpr int kCluster = C.cluster;
  const bool is_packed = kCluster == 1 && p.packed_q.cu_seqlens != nullptr;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster());
  const bool is_leader = threadIdx.x % 32 == 0;
  PackedTiles packed(p, C.br());
  TilePosition at;
  int index = static_cast<int>(blockIdx.x) / kCluster;

  while (true) {
    FlashTile& tile = shared.tiles.acquire(at);
    const bool exists = is_packed ? packed.find(p, C.br(), index) : index < schedule.tiles;
    if (exists && is_packed) {
      packed.write(tile, p, schedule, C, index);
    } else if (exists && is_leader) {
      write_tile(tile, p, schedule, C, index, rank);
    }
    if (is_leader) {
      tile.is_end = !exists;
      shared.tiles.put(at);
    }
    __syncwarp();
    if (!exists) {
      break;
    }
    if (schedule.tickets.word != nullptr) {
      shared.tiles.wait_until_wanted(at);
      index = is_leader ? draw_tile(schedule.tickets) : 0;
      index = __shfl_sync(0xffffffffu, index, 0);
    } else {
      index += static_cast<int>(gridDim.x) / kCluster;
    }
    at.advance();
  }
  if (schedule.tickets.word != nullptr) {
    hand_in_ticket(schedule.tickets, index, is_packed ? packed.total() : schedule.tiles);
  }
}

// One warp clears unseen rows of V tiles: after their load and before the consumers read them.
template <typename Config>
__device__ void clear_unseen(SharedStorage<Config>& shared) {
  constexpr FlashConfig C = Config::C;
  constexpr int kVectors = C.value_dim / 8;                    // of 16 bytes, in a row
  constexpr int kBoxVectors = Config::Tiles::kBoxColumns / 8;  // in a row of a TMA box
  typename Config::Position at;
  TilePosition at_tile;
  std::uint32_t phases = 0;  // of `uncleared`: a bit for each stage
  while (true) {
    const FlashTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    for (int j = tile.kv_end - 1; j >= tile.kv_first; --j) {
      if (has_unseen<C, false>(tile, j)) {
        shared.uncleared[at.stage].wait(phases >> at.stage & 1);
        phases ^= 1u << at.stage;
        const int first = tile.seen_first - j * C.bc;
        const int end = tile.seen_end - j * C.bc;
        auto* const vectors = reinterpret_cast<uint4*>(shared.sV[at.stage]);
        for (int i = threadIdx.x % 32; i < C.bc * kVectors; i += 32) {
          const int row = i / kBoxVectors % C.bc;
          if (row < first || row >= end) {
            vectors[i] = uint4{};
          }
        }
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          shared.v.full[at.stage].arrive();
        }
      }
      at.advance();
    }
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

// One thread stores O by TMA, while the consumers compute the next tile.
template <typename Config>
__device__ void store(SharedStorage<Config>& shared, const AttentionParams& p,
                      const CUtensorMap& map) {
  constexpr FlashConfig C = Config::C;
  TilePosition at_tile;
  RingPosition<1> at;
  while (true) {
    const FlashTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    if (goes_by_tma<C.br()>(p, tile)) {
      for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
        tma_store_tile<kWarpgroupRows, C.value_dim, Config::Tiles::kBoxColumns>(
            map, shared.output.wait(consumer, at),
            tile.q_start + tile.row0 + consumer * kWarpgroupRows, tile.head, tile.batch);
        shared.output.release(consumer);
      }
      at.advance();
    }
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

// Skips the key tiles that only other consumers' rows see: those from the last one, j, down to
// `end`.
template <typename Config, int kConsumers>
__device__ __forceinline__ void skip_key_tiles(SharedStorage<Config>& shared,
                                               const PingPong<kConsumers>& ping_pong,
                                               typename Config::Position& at, int& j, int end) {
#pragma unroll 1
  for (; j >= end; --j) {
    ping_pong.skip();
    shared.k.skip(at);
    shared.v.skip(at);
    at.advance();
  }
}

// A consumer: one warpgroup, which computes its 64 rows of one tile after another.
template <typename Config>
__device__ void consume(SharedStorage<Config>& shared, const AttentionParams& p, int consumer) {
  using Element = typename Config::Element;
  using T = typename Config::Tiles;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr int kBc = Config::C.bc;
  constexpr bool kMayHalve = kBc == 128;  // P V may skip the second half of the last key tile
  const int thread = threadIdx.x % kWarpgroupThreads;

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const Tensor tOrV = T::operand_v(shared.sV[0]);
  Tensor tSrS = T::scores();
  Tensor tOrO = T::output();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  Tensor rO = by_rows<MmaPv>(tOrO);  // (rows, columns)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread));
  Tensor rP = make_tensor_like<Element>(tSrS);
  const Tensor tOrP = make_tensor(rP.data(), c_registers_of_a<MmaQk, MmaPv>());

  constexpr int kRows = size<0>(rS);
  const float scale_log2 = p.softcap > 0.0f ? kLog2e : scale_to_log2(p.scale);
  const float most_log2 = most_p_log2(p.causal);
  const PingPong<Config::kConsumers> ping_pong{consumer};
  typename Config::Position at;
  RingPosition<1> at_q;
  RingPosition<1> at_o;
  TilePosition at_tile;
  ping_pong.begin();

  while (true) {
    const FlashTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    const int row0 = tile.row0 + consumer * kWarpgroupRows;
    const int first = tile.kv_first;
    const SeenTiles seen(p, tile, row0, kWarpgroupRows, kBc);
    // If no row sees the second half of the last key tile, P is 0 there and P V skips it. With a
    // causal mask this holds for every other consumer.
    bool is_half = kMayHalve && seen.last_len <= kBc / 2;  // until its P V is issued
    int j = tile.kv_end - 1;
    LazyRows<kRows> rows;
    float factor[kRows];

    const auto takes_plain_step = [&](int key_tile) {
      return key_tile >= seen.lazy_first && key_tile < seen.lazy_end && p.softcap == 0.0f;
    };
    const auto cap_and_mask = [&] {
      if (p.softcap > 0.0f) {
        cap(rS, p.scale, p.softcap);
      }
      if (j >= seen.lazy_end || j < seen.lazy_first) {
        const VisibleKeys keys = visible_keys(p, tile.q_len, tile.kv_len);
        mask_outside(
            rS, cS, [&](int row) { return keys.first(row0 + row) - j * kBc; },
            [&](int row) { return keys.end(row0 + row) - j * kBc; });
      }
    };

    const auto issue_pv = [&](const typename Config::Position& at_v) {
      const Tensor V = tOrV(_, _, _, at_v.stage);
      if (kMayHalve && is_half) {
        wgmma_issue<true, kMayHalve ? 2 : 1>(MmaPv{}, tOrP, V, tOrO);
        is_half = false;
      } else {
        wgmma_issue<true>(MmaPv{}, tOrP, V, tOrO);
      }
    };

    const auto release_q_after = [&](int key_tile) {
      if (key_tile == first) {  // the last GEMM that reads Q
        shared.q[consumer].release(at_q);
      }
    };

    if (j >= first) {
      // The first step, over the last key tile that these rows see, computes P.
      shared.q[consumer].wait(at_q);
      skip_key_tiles<Config>(shared, ping_pong, at, j, seen.end);
      shared.k.wait(at);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
      clear(tOrO);
      wgmma_wait<0>(tSrS);
      shared.k.release(at);
      release_q_after(j);
      cap_and_mask();
      eager_softmax_step<MmaQk>(rS, rows, scale_log2, factor);
      round_to_16_bits(tSrS, rP);

      // A step over key tile j: it adds P V of tile j + 1 to O, and computes P of tile j.
      const auto step = [&](auto plain) {
        --j;
        const typename Config::Position at_v = at;
        at.advance();

        // Both GEMMs are issued when it is this consumer's turn.
        ping_pong.wait();
        shared.k.wait(at);
        wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
        shared.v.wait(at_v);
        issue_pv(at_v);
        ping_pong.pass();

        // The softmax of S runs while P V is computed.
        wgmma_wait<1>(tSrS);
        shared.k.release(at);
        release_q_after(j);
        bool moved = false;
        if constexpr (decltype(plain)::value) {
          moved = lazy_softmax_step<MmaQk>(rS, rows, scale_log2, most_log2, factor);
        } else {
          cap_and_mask();
          eager_softmax_step<MmaQk>(rS, rows, scale_log2, factor);
        }

        // P V is done: O may be scaled, and P overwritten.
        wgmma_wait<0>(tOrO);
        shared.v.release(at_v);
        if constexpr (!decltype(plain)::value) {
          scale_rows(rO, factor);
        }
        round_to_16_bits(tSrS, rP);
        return moved;
      };
      while (j > first) {
        while (j > first && !takes_plain_step(j - 1)) {
          step(false_type{});
        }
        bool moved = false;
        while (!moved && j > first && takes_plain_step(j - 1)) {
          moved = step(true_type{});
        }
        if (moved) {  // rare, and so outside the inner loop
          scale_rows(rO, factor);
        }
      }
      shared.v.wait(at);
      issue_pv(at);  // of the first key tile
    } else {
      clear(tOrO);
    }
    finish_statistics<Element, MmaPv>(p, tile, row0, cO, rows, scale_log2, factor);
    wgmma_wait<0>(tOrO);
    if (j >= first) {
      shared.v.release(at);
      at.advance();
      at_q.advance();
    }
    scale_rows(rO, factor);
    finish_output<Config>(shared.output, p, tile, row0, consumer, at_o, tOrO, rO, cO);
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
  ping_pong.end();
}

template <int kIndex, typename Element, bool kIsPlain>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element>::kThreads, 1)
    flash(const __grid_constant__ AttentionParams params, const __grid_constant__ TensorMaps maps,
          const __grid_constant__ FlashSchedule schedule) {
  decltype(auto) p = with_constants<kIsPlain>(params);
  using Config = ConfigOf<kIndex, Element>;
  constexpr bool kIsCluster = Config::C.cluster > 1;
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  static_assert(sizeof(shared) <= Config::kMost_bytes);
  const bool may_clear =
      !kIsPlain && (p.kv_lengths.cu_seqlens || p.kv_lengths.used || p.window.left < p.kv_len);

  if (threadIdx.x == 32) {  // another thread than the one that sets up barriers
    prefetch_tma_descriptor(&maps.k);
    prefetch_tma_descriptor(&maps.q);
    prefetch_tma_descriptor(&maps.v);
    if (p.statistics.max == nullptr) {
      prefetch_tma_descriptor(&maps.o);
    }
  }
  if (threadIdx.x == 0) {
    for (TmaRing<1>& ring : shared.q) {
      ring.init(kWarpgroupThreads / 32);
    }
    shared.k.init(Config::kConsumerWarps);
    shared.v.init(Config::kConsumerWarps);
    for (TmaBarrier& barrier : shared.uncleared) {
      barrier.init(1);
    }
    shared.output.init();
    shared.tiles.init(Config::kConsumerWarps + 2 + may_clear);
    cutlass::arch::fence_barrier_init();
  }
  // Waits until the barriers are set up, in all blocks of the cluster.
  kIsCluster ? cluster_sync() : __syncthreads();

  run_roles<Config::kConsumers>(
      [&](int warp) {
        if (warp == 0 && threadIdx.x == 0) {
          load<Config, kIsPlain>(shared, maps);
        } else if (warp == 1) {
          schedule_tiles<Config>(shared, p, schedule);
        } else if (warp == 2 && may_clear) {
          clear_unseen<Config>(shared);
        } else if (warp == 3 && threadIdx.x % 32 == 0) {
          store<Config>(shared, p, maps.o);
        }
      },
      [&](int consumer) { consume<Config>(shared, p, consumer); });
  if constexpr (kIsCluster) {
    cluster_sync();  // no block ends while another still writes to its SMEM
  }
}

}  // namespace flash
}  // namespace tilewright::cuda
