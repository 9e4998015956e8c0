// What the producer's warps do in kernels of flash's kind, besides loading K and V, which is each
// kernel's own: they find tiles, clear what is not seen, and store O.
#pragma once

#include "cuda/attention/blocks/flash_config.cuh"
#include "cuda/attention/blocks/flash_finish.cuh"
#include "cuda/attention/blocks/tile_tickets.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {
namespace flash {

// How many key tiles are still to be loaded when the loading thread asks for the next tile.
constexpr int kTilesAhead = 2;

// Does key tile j hold values that no query of the sequence sees? There are none where the blocks
// of a cluster share key tiles.
template <auto kConfig>
__device__ bool has_unseen(const FlashTile& tile, int j) {
  return kConfig.cluster == 1 &&
         (tile.seen_first > j * kConfig.bc || tile.seen_end < (j + 1) * kConfig.bc);
}

// One warp finds the tiles that this block computes. It takes a ticket only when few loads of the
// tile before are left: a block in the middle of a long tile leaves the next one to others. With
// `starts_late` it takes one for its first tile, too.
template <typename Storage, typename Sequences>
__device__ void schedule_tiles(Storage& shared, const Sequences& sequences,
                               const FlashSchedule& schedule, bool starts_late = false) {
  constexpr auto C = Storage::C;
  constexpr int kCluster = C.cluster;
  const auto& p = sequences.params();
  const bool is_packed = kCluster == 1 && p.packed_q.cu_seqlens != nullptr;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster());
  const bool is_leader = threadIdx.x % 32 == 0;
  PackedTiles packed(sequences, C.br());
  typename Storage::TilePosition at;
  const auto draw = [&] {
    const int untaken = starts_late ? 0 : static_cast<int>(gridDim.x);
    const int drawn = is_leader ? draw_tile(schedule.tickets, untaken) : 0;
    return __shfl_sync(0xffffffffu, drawn, 0);
  };
  int index = starts_late ? draw() : static_cast<int>(blockIdx.x) / kCluster;

  while (true) {
    auto& tile = shared.tiles.acquire(at);
    const bool exists = is_packed ? packed.find(sequences, C.br(), index) : index < schedule.tiles;
    if (exists && is_packed) {
      packed.write(tile, sequences, schedule, C, index);
    } else if (exists && is_leader) {
      write_tile(tile, sequences, schedule, C, index, rank);
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
      index = draw();
    } else {
      index += static_cast<int>(gridDim.x) / kCluster;
    }
    at.advance();
  }
  if (schedule.tickets.word != nullptr) {
    hand_in_ticket(schedule.tickets, index, is_packed ? packed.total() : schedule.tiles);
  }
}

// A thread lets TMA bring what its block needs of the tensor maps.
__device__ inline void prefetch(const FlashTensorMaps& maps, bool stores_by_tma) {
  cute::prefetch_tma_descriptor(&maps.k);
  cute::prefetch_tma_descriptor(&maps.q);
  cute::prefetch_tma_descriptor(&maps.v);
  if (stores_by_tma) {
    cute::prefetch_tma_descriptor(&maps.o);
  }
}

// One thread loads Q of a tile.
template <typename Storage>
__device__ __forceinline__ void load_q(Storage& shared, const CUtensorMap& map,
                                       const FlashTile& tile, const RingPosition<1>& at) {
  using Config = typename Storage::Config;
#pragma unroll 1
  for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
    TmaBarrier& full = shared.q[consumer].acquire(at, sizeof(shared.sQ[0]));
    tma_load_tile<kWarpgroupRows, Config::C.head_dim, Config::Tiles::kBoxColumns>(
        map, full, shared.sQ[consumer], tile.q_start + tile.row0 + consumer * kWarpgroupRows,
        tile.head, tile.batch);
  }
}

// A warp writes zeros over the rows of a V tile that are outside [first, end), for GEMMs to read.
template <typename Config>
__device__ void clear_rows(typename Config::Element* sV, int first, int end) {
  constexpr auto C = Config::C;
  constexpr int kVectors = C.value_dim / 8;                    // of 16 bytes, in a row
  constexpr int kBoxVectors = Config::Tiles::kBoxColumns / 8;  // in a row of a TMA box
  auto* const vectors = reinterpret_cast<uint4*>(sV);
  for (int i = threadIdx.x % 32; i < C.bc * kVectors; i += 32) {
    const int row = i / kBoxVectors % C.bc;
    if (row < first || row >= end) {
      vectors[i] = uint4{};
    }
  }
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
}

// One warp clears unseen keys of V tiles: after their load and before the consumers read them.
// clear(sV, first, end) clears a tile's keys outside [first, end).
template <typename Storage, typename Clear>
__device__ void clear_unseen(Storage& shared, const Clear& clear) {
  using Config = typename Storage::Config;
  constexpr auto C = Config::C;
  typename Config::PositionV at;
  typename Storage::TilePosition at_tile;
  std::uint32_t phases = 0;  // of `uncleared`: a bit for each stage
  while (true) {
    const auto& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    for (int j = tile.kv_end - 1; j >= tile.kv_first; --j) {
      if (has_unseen<C>(tile, j)) {
        shared.uncleared[at.stage].wait(phases >> at.stage & 1);
        phases ^= 1u << at.stage;
        clear(shared.sV[at.stage], tile.seen_first - j * C.bc, tile.seen_end - j * C.bc);
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
template <typename Storage, typename Params>
__device__ void store(Storage& shared, const Params& p, const CUtensorMap& map) {
  using Config = typename Storage::Config;
  constexpr auto C = Config::C;
  typename Storage::TilePosition at_tile;
  RingPosition<1> at;
  while (true) {
    const auto& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    if (goes_by_tma<C.br()>(p, tile)) {
      for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
        tma_store_tile<kWarpgroupRows, C.value_dim, Config::Output::kBoxColumns>(
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

}  // namespace flash
}  // namespace tilewright::cuda
