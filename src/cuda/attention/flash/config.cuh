// What the flash kernel knows of its config at compile time, and the SMEM of a block.
#pragma once

#include "cuda/attention/blocks/output_slots.cuh"
#include "cuda/attention/blocks/tile_ring.cuh"
#include "cuda/attention/blocks/wgmma_tiles.cuh"
#include "cuda/attention/flash/configs.hpp"
#include "cuda/attention/flash/tiles.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace flash {

// Config kIndex, for elements of one of the types that it takes.
template <int kIndex, typename T>
struct ConfigOf {
  using Element = T;
  static constexpr FlashConfig C = kFlashConfigs[kIndex];
  static constexpr int kConsumers = C.consumers;
  static constexpr int kStages = C.stages;
  static constexpr int kThreads = block_threads(kConsumers);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupThreads / 32;
  using Position = RingPosition<kStages>;
  using Tiles = WgmmaTiles<Element, C.head_dim, C.bc, kStages, C.value_dim>;

  // A slot for O for each consumer if SMEM has room for them; else one slot for all.
  static constexpr int kMost_bytes = 227 * 1024;  // of a block; 2 KB of it are not tiles'
  static constexpr int kRoom_bytes =
      kMost_bytes - 2048 - 2 * (C.br() * C.head_dim + kStages * C.bc * (C.head_dim + C.value_dim));
  static constexpr int kSlot_bytes = 2 * kWarpgroupRows * C.value_dim;
  static constexpr int kSlots = kRoom_bytes >= kConsumers * kSlot_bytes ? kConsumers : 1;
  static_assert(kRoom_bytes >= kSlots * kSlot_bytes);
  using Output = OutputSlots<Element, Tiles, kConsumers, kSlots>;
};

// `Config` is a ConfigOf.
template <typename Config>
struct SharedStorage {
  using Element = typename Config::Element;
  static constexpr FlashConfig C = Config::C;
  alignas(1024) Element sQ[C.consumers][kWarpgroupRows * C.head_dim];  // (64, D)
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];               // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.value_dim];              // (Bc, Dv, stages)
  typename Config::Output output;
  TmaRing<1> q[C.consumers];
  TmaRing<C.stages, C.cluster> k;
  TmaRing<C.stages, C.cluster> v;
  TmaBarrier uncleared[C.stages];  // in place of v.full, if a warp clears rows first
  TileRing<FlashTile> tiles;
};
using TilePosition = TileRing<FlashTile>::Position;

struct TensorMaps {
  CUtensorMap q, k, v, o;
};

}  // namespace flash
}  // namespace tilewright::cuda
