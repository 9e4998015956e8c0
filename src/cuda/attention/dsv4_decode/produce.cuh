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

#include "cuda/attention/dsv4_decode/rows.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kKeyStages = 2;
inline constexpr int kHalves = 2;  // of a tile's dims
inline constexpr int kHalfGroups = kGroups / kHalves;
inline constexpr int kPasses = 2;  // of a producer's warp over its keys
inline constexpr int kPassKeys = 8;
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

// ---- Where rows lie

__device__ inline KvRowFormat format_of(const Params& p, int source) {
  return source == kWindow       ? p.window.format
         : source == kCompressed ? p.compressed.format
                                 : KvRowFormat::bf16;
}

// The row of key `key` of a scope of the item; none if there is no such row.
__device__ inline RowAt find_row(const Params& p, const Launch& launch, const Unit& unit,
                                 int source, int key) {
  if (key >= unit.keys[source]) {
    return {};
  }
  if (source == kFresh) {
    const int token = unit.token0 - unit.fresh0 + key;
    const auto* const rows = static_cast<const Element*>(p.fresh.rows);
    return {reinterpret_cast<const std::uint8_t*>(rows + at(p.fresh.stride, unit.request, token)),
            nullptr};
  }
  const Scope& scope = source == kWindow ? p.window : p.compressed;
  const Divisor& page_size = launch.page_size[source];
  int page = 0;
  int row = 0;
  if (scope.keys == Scope::Keys::list) {
    const int slot =
        __ldg(scope.indices + at(scope.indices_stride, unit.request, unit.token0) + key);
    if (slot < 0) {
      return {};
    }
    page = slot / page_size;
    row = slot - page * page_size;
  } else {
    int position = unit.begin[source] + key;
    if (scope.ring > 0) {
      position -= position / launch.ring[source] * scope.ring;
    }
    const int index = position / page_size;
    row = position - index * page_size;
    if (index >= scope.max_pages) {
      return {};
    }
    page = scope.block_table != nullptr
               ? __ldg(scope.block_table + unit.request * scope.table_stride + index)
               : unit.request;
  }
  if (page < 0 || page >= scope.pages) {
    return {};
  }
  const auto* const first = static_cast<const std::uint8_t*>(scope.rows) + page * scope.page_bytes;
  const std::uint8_t* const data = first + row * scope.row_bytes;
  const KvRowParts parts = parts_of(scope.format);
  return {data, parts.has_planes
                    ? first + page_size * scope.row_bytes + std::int64_t{row} * parts.scales_bytes
                    : data + parts.data_bytes()};
}

// ---- Loading a run of tiles whose rows have one format

// A lane's part of a tile: of each pass, its key's row.
template <KvRowFormat kFormat>
class Lane {
 public:
  using F = Format<kFormat>;

  __device__ Lane(const Params& p, const Launch& launch, const Unit& unit)
      : p_(p), launch_(launch), unit_(unit) {}

  // The key of a pass, in its tile.
  __device__ static int key_of(int pass) {
    return threadIdx.x % 128 / 32 * (kPasses * kPassKeys) + pass * kPassKeys + threadIdx.x % 32 / 4;
  }

  // Finds the rows of a tile; they become the present ones pass by pass.
  __device__ void find(int tile) {
    const TileAt at = tile_at(unit_, tile);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      next_[pass] = find_row(p_, launch_, unit_, at.source, at.key0 + key_of(pass));
    }
  }
  template <int kPass>
  __device__ void turn_to_next() {
    row_[kPass] = next_[kPass].data;
    scales_[kPass] =
        row_[kPass] != nullptr ? F::scales(next_[kPass].scales, quarter()) : typename F::Scales{};
  }

  // Bit i of the warp's 16: there is a row for its key i in the present tile.
  __device__ std::uint32_t exist() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (row_[pass] != nullptr) {
        bits |= 1u << (pass * kPassKeys + threadIdx.x % 32 / 4);
      }
    }
    return __reduce_or_sync(0xffffffffu, bits);
  }

  // A group of 64 dims of a pass's row on its way: loaded, and stored to the tile's column block.
  __device__ typename F::Raw load(int pass, int group) const {
    return row_[pass] != nullptr ? F::load(row_[pass], group, quarter()) : typename F::Raw{};
  }
  __device__ void store(Element* block, int pass, int group, const typename F::Raw& raw) const {
    const SixteenValues values = F::widen(raw, group, scales_[pass]);
    const int key = key_of(pass);
    *reinterpret_cast<uint4*>(vector_of(block, key, 2 * quarter())) = values.low;
    *reinterpret_cast<uint4*>(vector_of(block, key, 2 * quarter() + 1)) = values.high;
  }

  // Copies a group of a pass's row as it is, or zeros where there is no row.
  __device__ void copy(Element* block, int pass, int group) const {
    const bool exists = row_[pass] != nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int vector = 2 * quarter() + i;
      const std::uint8_t* const source =
          exists ? row_[pass] + group * 128 + vector * 16 : static_cast<const std::uint8_t*>(p_.q);
      cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
          *reinterpret_cast<const cute::uint128_t*>(source),
          *reinterpret_cast<cute::uint128_t*>(vector_of(block, key_of(pass), vector)), exists);
    }
  }

 private:
  __device__ static int quarter() { return threadIdx.x % 4; }

  const Params& p_;
  const Launch& launch_;
  const Unit& unit_;
  RowAt next_[kPasses];
  const std::uint8_t* row_[kPasses];  // data
  typename F::Scales scales_[kPasses];
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

// A warp says that its part of a stage's half is there.
__device__ inline void fill(cutlass::arch::ClusterBarrier& full) {
  cutlass::arch::fence_view_async_shared();  // before WGMMA reads it
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    full.arrive();
  }
}

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
  Lane<KvRowFormat::bf16> lane(p, launch, unit);
  cutlass::arch::ClusterBarrier* under_way = nullptr;
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    const StageAt at(unit, tile);
    lane.find(tile);
    lane.turn_to_next<0>();
    lane.turn_to_next<1>();
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
  __device__ void load(const Lane<kFormat>& lane) {
#pragma unroll
    for (int i = 0; i < kHalfGroups; ++i) {
      raw[kPass][i] = lane.load(kPass, kHalf * kHalfGroups + i);
    }
  }
  template <int kHalf, int kPass>
  __device__ void store(const Lane<kFormat>& lane, Element* sK) const {
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
  Lane<kFormat> lane(p, launch, unit);
  HalfTile<kFormat> half;
  lane.find(first);
  lane.template turn_to_next<0>();
  lane.template turn_to_next<1>();
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
      lane.template turn_to_next<0>();
      half.template load<0, 0>(lane);
    }
    half.template store<1, 1>(lane, sK);
    if (has_next) {
      lane.template turn_to_next<1>();
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
    const KvRowFormat format = format_of(p, tile_at(unit, tile).source);
    int end = tile + 1;
    while (end < unit.end_tile && format_of(p, tile_at(unit, end).source) == format) {
      ++end;
    }
    switch (format) {
      case KvRowFormat::bf16:
        copy_run(stages, p, launch, unit, tile, end);
        break;
      case KvRowFormat::e4m3_bf16:
        load_run<KvRowFormat::e4m3_bf16>(stages, p, launch, unit, tile, end);
        break;
      case KvRowFormat::e4m3:
        load_run<KvRowFormat::e4m3>(stages, p, launch, unit, tile, end);
        break;
      case KvRowFormat::e2m1:
        load_run<KvRowFormat::e2m1>(stages, p, launch, unit, tile, end);
        break;
    }
    tile = end;
  }
}

}  // namespace tilewright::cuda::dsv4
