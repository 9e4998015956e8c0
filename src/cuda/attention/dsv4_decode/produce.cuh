// The producer of dsv4_attention(): a warpgroup that brings rows of the caches to SMEM as BF16. A
// warp takes 16 keys of a tile, in two passes of eight, four lanes a key. It holds a whole tile in
// registers: what it stores of one it loads of the next, which has been brought to L2 before. The
// kernel for any formats has registers for half a tile.
//
//   tile t      store L of pass 0, of pass 1 | store R of pass 0, of pass 1
//   tile t + 1      load L of pass 0, of pass 1 |  load R of pass 0, of pass 1
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

// What the producer fills.
struct KeyStages {
  KeyRing& ring;
  Element (*sK)[kTileKeys * kDims];
};

// Which of the ring's stages a tile takes, and the phase of its barriers there.
struct StageAt {
  int stage;
  std::uint32_t phase;

  __device__ StageAt(const Unit& unit, int tile)
      : stage((unit.ring0 + tile) % kKeyStages), phase((unit.ring0 + tile) / kKeyStages & 1) {}
};

template <KvRowFormat kFormat>
using ProducerLane = Lane<kFormat, kProducerWarps>;

// Loads tiles [first, end) of BF16 rows, which go to SMEM as they are: while a half is under way,
// the one before is given to the consumers.
__device__ __forceinline__ void copy_run(const KeyStages& stages, const Unit& unit,
                                         const ProducerLane<KvRowFormat::bf16>& lane, int first,
                                         int end) {
  cutlass::arch::ClusterBarrier* under_way = nullptr;
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    const StageAt at(unit, tile);
    const auto rows = lane.find(tile, end);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      stages.ring.empty[at.stage][half].wait(at.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kPasses * kHalfGroups; ++i) {
        const int group = half * kHalfGroups + i % kHalfGroups;
        lane.copy(stages.sK[at.stage] + group * kBlock_elements, i / kHalfGroups, group, rows);
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

// Loads tiles [first, end) of any other format. Of each pass, kAhead groups are in registers: a
// whole tile or half of one.
template <int kAhead, KvRowFormat kFormat>
__device__ __forceinline__ void widen_run(const KeyStages& stages, const Unit& unit,
                                          const ProducerLane<kFormat>& lane, int first, int end) {
  using Rows = typename ProducerLane<kFormat>::Rows;
  Rows rows = lane.find(first, end);
  typename ProducerLane<kFormat>::Raw raw[kPasses][kAhead];
#pragma unroll
  for (int i = 0; i < kPasses * kAhead; ++i) {
    raw[i / kAhead][i % kAhead] = lane.load(rows, i / kAhead, i % kAhead);
  }
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    const StageAt at(unit, tile);
    Rows next;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      stages.ring.empty[at.stage][half].wait(at.phase ^ 1);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
        for (int group = half * kHalfGroups; group < (half + 1) * kHalfGroups; ++group) {
          lane.store(stages.sK[at.stage] + group * kBlock_elements, pass, group,
                     raw[pass][group % kAhead], rows);
        }
        if (rows.scales[pass].some_exceed()) {
#pragma unroll 1
          for (int group = half * kHalfGroups; group < (half + 1) * kHalfGroups; ++group) {
            lane.store_rest(stages.sK[at.stage] + group * kBlock_elements, pass, group, rows);
          }
        }
        if (half == 0 && pass == 0) {
          next = lane.find(tile + 1, end);
        }
#pragma unroll
        for (int group = half * kHalfGroups; group < (half + 1) * kHalfGroups; ++group) {
          const int later = group + kAhead;
          raw[pass][group % kAhead] =
              lane.load(later < kGroups ? rows : next, pass, later % kGroups);
        }
      }
      fill(stages.ring.full[at.stage][half]);
    }
    rows = next;
  }
}

// Loads the tiles of a stretch, run by run.
template <int kFormats>
__device__ __forceinline__ void produce(const KeyStages& stages, const Params& p,
                                        const Launch& launch, const Unit& unit,
                                        const Places& places, const Stretch& stretch) {
  int tile = stretch.first;
  while (tile < stretch.end) {
    const int end = run_end<kFormats>(p, unit, tile, stretch.end);
    const KvRowFormat its_format = format_of<kFormats>(p, tile_at(unit, tile).source);
    with_format<kFormats>(its_format, [&](auto format) {
      const ProducerLane<format.value> lane(p, launch, unit, places, stretch.first);
      if constexpr (format.value == KvRowFormat::bf16) {
        copy_run(stages, unit, lane, tile, end);
      } else {
        constexpr int kAhead = kDsv4Formats[kFormats].count() > 2 ? kHalfGroups : kGroups;
        widen_run<kAhead, format.value>(stages, unit, lane, tile, end);
      }
    });
    tile = end;
  }
}

}  // namespace tilewright::cuda::dsv4
