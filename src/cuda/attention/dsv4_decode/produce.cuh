// The producer of dsv4_attention(): a warpgroup that brings rows of the caches to SMEM as BF16. A
// warp takes 16 keys of a tile, in two passes of eight, four lanes a key. It holds the next four
// groups of each pass in registers while it widens and stores those before.
//
//   pass 0   load L | store L, load R | store R, load L of the next tile | ...
//   pass 1          load L | store L, load R | store R, load L           | ...
//
// L and R are the left and right halves of the dims, which have barriers of their own: scores of a
// tile begin when L is there.
#pragma once

#include <cutlass/arch/barrier.h>

#include "cuda/attention/dsv4_decode/lane.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kKeyStages = 2;
inline constexpr int kHalves = 2;  // of a tile's dims
inline constexpr int kHalfGroups = kGroups / kHalves;
inline constexpr int kPasses = 2;  // of a producer's warp over its keys
inline constexpr int kProducerWarps = 4;
static_assert(kProducerWarps * kPasses * kPassKeys == kTileKeys);

// The ring of key tiles. Half h of a stage is empty when consumer h, the only one that reads it as
// V, has released it; by then both have read it as K.
struct KeyRing {
  cutlass::arch::ClusterBarrier full[kKeyStages][kHalves];
  cutlass::arch::ClusterBarrier empty[kKeyStages][kHalves];

  __device__ void init() {
    for (int stage = 0; stage < kKeyStages; ++stage) {
      for (int half = 0; half < kHalves; ++half) {
        full[stage][half].init(kProducerWarps);
        empty[stage][half].init(kConsumerWarps);
      }
    }
  }
};

// What the producer fills: the ring's tiles, and which of their keys exist.
struct KeyStages {
  KeyRing& ring;
  Element (*sK)[kTileKeys * kDims];
  std::uint16_t (*exist)[kProducerWarps];

  // Leaves the warp's 16 bits.
  __device__ void say_what_exists(int stage, std::uint32_t bits) const {
    if (threadIdx.x % 32 == 0) {
      exist[stage][threadIdx.x % 128 / 32] = static_cast<std::uint16_t>(bits);
    }
  }
};

// Which of the ring's stages a tile takes, and the phase of its barriers there.
struct StageAt {
  int stage;
  std::uint32_t phase;

  __device__ StageAt(const Unit& unit, int tile)
      : stage((unit.ring0 + tile) % kKeyStages), phase((unit.ring0 + tile) / kKeyStages & 1) {}
};

// Loads tiles [first, end) of BF16 rows, which go to SMEM as they are: while a half is under way,
// the one before is given to the consumers.
__device__ __forceinline__ void copy_run(const KeyStages& stages, const Params& p,
                                         const Launch& launch, const Unit& unit, int first,
                                         int end) {
  Lane<KvRowFormat::bf16, kProducerWarps> lane(p, launch, unit);
  cutlass::arch::ClusterBarrier* under_way = nullptr;
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    const StageAt at(unit, tile);
    lane.find(tile);
    lane.turn_to_next(0);
    lane.turn_to_next(1);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      stages.ring.empty[at.stage][half].wait(at.phase ^ 1);
      if (half == 1) {
        stages.say_what_exists(at.stage, lane.exist());
      }
#pragma unroll
      for (int i = 0; i < kPasses * kHalfGroups; ++i) {
        const int group = half * kHalfGroups + i % kHalfGroups;
        lane.copy(stages.sK[at.stage] + group * kBlock_elements, i / kHalfGroups, group);
      }
      cute::cp_async_fence();
      if (under_way != nullptr) {
        cute::cp_async_wait<1>();
        fill(*under_way);
      }
      under_way = &stages.ring.full[at.stage][half];
    }
  }
  cute::cp_async_wait<0>();
  fill(*under_way);
}

// Half a tile on its way through a lane's registers.
template <KvRowFormat kFormat>
struct HalfTile {
  typename Format<kFormat>::Raw raw[kPasses][kHalfGroups];

  template <int kHalf, int kPass>
  __device__ void load(const Lane<kFormat, kProducerWarps>& lane) {
#pragma unroll
    for (int i = 0; i < kHalfGroups; ++i) {
      raw[kPass][i] = lane.load(kPass, kHalf * kHalfGroups + i);
    }
  }
  template <int kHalf, int kPass>
  __device__ void store(const Lane<kFormat, kProducerWarps>& lane, Element* sK) const {
#pragma unroll
    for (int i = 0; i < kHalfGroups; ++i) {
      const int group = kHalf * kHalfGroups + i;
      lane.store(sK + group * kBlock_elements, kPass, group, raw[kPass][i]);
    }
  }
};

// Loads tiles [first, end) of any other format.
template <KvRowFormat kFormat>
__device__ __forceinline__ void load_run(const KeyStages& stages, const Params& p,
                                         const Launch& launch, const Unit& unit, int first,
                                         int end) {
  Lane<kFormat, kProducerWarps> lane(p, launch, unit);
  HalfTile<kFormat> half;
  lane.find(first);
  lane.turn_to_next(0);
  lane.turn_to_next(1);
  half.template load<0, 0>(lane);
  half.template load<0, 1>(lane);
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    const StageAt at(unit, tile);
    Element* const sK = stages.sK[at.stage];
    const bool has_next = tile + 1 < end;
    if (has_next) {
      lane.find(tile + 1);
    }

    stages.ring.empty[at.stage][0].wait(at.phase ^ 1);
    half.template store<0, 0>(lane, sK);
    half.template load<1, 0>(lane);
    half.template store<0, 1>(lane, sK);
    half.template load<1, 1>(lane);
    fill(stages.ring.full[at.stage][0]);

    stages.ring.empty[at.stage][1].wait(at.phase ^ 1);
    stages.say_what_exists(at.stage, lane.exist());
    half.template store<1, 0>(lane, sK);
    if (has_next) {
      lane.turn_to_next(0);
      half.template load<0, 0>(lane);
    }
    half.template store<1, 1>(lane, sK);
    if (has_next) {
      lane.turn_to_next(1);
      half.template load<0, 1>(lane);
    }
    fill(stages.ring.full[at.stage][1]);
  }
}

// Loads the unit's tiles, run by run.
__device__ __forceinline__ void produce(const KeyStages& stages, const Params& p,
                                        const Launch& launch, const Unit& unit) {
  int tile = unit.first_tile;
  while (tile < unit.end_tile) {
    const int end = run_end(p, unit, tile);
    with_format(format_of(p, tile_at(unit, tile).source), [&](auto format) {
      if constexpr (format.value == KvRowFormat::bf16) {
        copy_run(stages, p, launch, unit, tile, end);
      } else {
        load_run<format.value>(stages, p, launch, unit, tile, end);
      }
    });
    tile = end;
  }
}

}  // namespace tilewright::cuda::dsv4
