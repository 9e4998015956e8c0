// What a kernel of flash's kind knows of its config at compile time, and the SMEM of a block.
#pragma once

#include "cuda/attention/blocks/flash_tiles.cuh"
#include "cuda/attention/blocks/output_slots.cuh"
#include "cuda/attention/blocks/tile_ring.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {

// SMEM for tiles that are widened before consumers read them, if the config's kernel has such.
template <auto kConfig>
constexpr int coded_bytes() {
  if constexpr (requires { kConfig.coded_bytes(); }) {
    return kConfig.coded_bytes();
  }
  return 0;
}

// A config, which is a row of a kernel's table, for elements of one of the types that it takes.
template <auto kConfig, typename T>
struct FlashConfigOf {
  using Element = T;
  static constexpr auto C = kConfig;
  static constexpr int kConsumers = C.consumers;
  static constexpr int kThreads = block_threads(kConsumers);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupThreads / 32;
  static constexpr int kStageValues = C.bc * C.value_dim;  // elements of a stage of V
  using PositionK = RingPosition<C.stages>;
  using PositionV = RingPosition<C.v_stages()>;
  using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, C.stages, C.value_dim, C.v_stages()>;

  // A slot for O for each consumer if SMEM has room for them; else one slot for all.
  static constexpr int kMost_bytes = 227 * 1024;  // of a block; 2 KB of it are not tiles'
  static constexpr int kRoom_bytes =
      kMost_bytes - 2048 - coded_bytes<C>() -
      2 * (C.br() * C.head_dim + C.bc * (C.stages * C.head_dim + C.v_stages() * C.value_dim));
  static constexpr int kSlot_bytes = 2 * kWarpgroupRows * C.value_dim;
  static constexpr int kSlots = kRoom_bytes >= kConsumers * kSlot_bytes ? kConsumers : 1;
  static_assert(kRoom_bytes >= kSlots * kSlot_bytes);
  using Output = OutputSlots<Element, Tiles, kConsumers, kSlots>;
};

// `Config_` is a FlashConfigOf, `Tile_` a FlashTile or what extends one.
template <typename Config_, typename Tile_>
struct FlashStorage {
  using Config = Config_;
  using Tile = Tile_;
  using Element = typename Config::Element;
  using TilePosition = typename TileRing<Tile>::Position;
  static constexpr auto C = Config::C;
  alignas(1024) Element sQ[C.consumers][kWarpgroupRows * C.head_dim];  // (64, D)
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];               // (Bc, D, stages)
  alignas(1024) Element sV[C.v_stages()][Config::kStageValues];        // (Bc, Dv, stages)
  typename Config::Output output;
  TmaRing<1> q[C.consumers];
  TmaRing<C.stages, C.cluster> k;
  TmaRing<C.v_stages(), C.cluster> v;
  TmaBarrier uncleared[C.v_stages()];  // in place of v.full, if a warp clears rows first
  TileRing<Tile> tiles;

  // One thread calls it before any other touches the storage. `other_readers` are warps beside the
  // consumers, K's loader and O's storer. Where TMA does not fill a stage, so many warps put it.
  __device__ void init(int other_readers, int q_writers = 1, int kv_writers = 1) {
    for (TmaRing<1>& ring : q) {
      ring.init(kWarpgroupThreads / 32, q_writers);
    }
    k.init(Config::kConsumerWarps, kv_writers);
    v.init(Config::kConsumerWarps, kv_writers);
    for (TmaBarrier& barrier : uncleared) {
      barrier.init(1);
    }
    output.init();
    tiles.init(Config::kConsumerWarps + 2 + other_readers);
    cutlass::arch::fence_barrier_init();
  }
};

struct FlashTensorMaps {
  CUtensorMap q, k, v, o;
};

}  // namespace tilewright::cuda
