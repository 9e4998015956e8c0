// What a block brings to L2 while the launch ahead may still run: lengths, lines of the block
// table, and the first key tiles that it guesses to be its own.
#pragma once

#include <bit>

#include "cuda/attention/decode/config.cuh"
#include "cuda/common/peek.cuh"

namespace tilewright::cuda {
namespace decode {

// Brings the lengths of the first 1,024 sequences to L2. A warp calls it.
__device__ inline void prefetch_lengths(const Params& p) {
  const int first = static_cast<int>(threadIdx.x) % 32 * 32;  // a line of 128 bytes
  if (first < p.batch) {
    for (const int* const lengths : {p.rows.cache_seqlens, p.packed_q.cu_seqlens, p.rows.leftpad}) {
      if (lengths != nullptr) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(lengths + first));
      }
    }
  }
}

// The same for lines of the block table, of which each block has a few: the first ones of all
// sequences come first.
__device__ inline void prefetch_table(const Params& p) {
  constexpr int kLinePages = 32;
  const int i = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) % 32;
  const int line = quotient(i, p.batch);
  if (p.rows.block_table != nullptr && line * kLinePages < p.rows.max_pages) {
    const int* const row = p.rows.block_table + (i - line * p.batch) * p.rows.table_stride;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + line * kLinePages));
  }
}

// The key tiles with which the block begins, if all sequences are as long as this one.
struct GuessedTiles {
  int sequence;
  int kv_head;
  TileRange tiles;
};
__device__ inline GuessedTiles guess_tiles(const Params& p, const Launch& launch) {
  constexpr int kMostItems = 1 << 20;  // so that their number times that of blocks is an int
  const int sequence_items = p.kv_heads * launch.shape.head_blocks;  // with one row tile each
  if (p.batch > quotient(kMostItems, sequence_items)) {
    return {};
  }
  const int items = p.batch * sequence_items;
  const int cluster_log2 = launch.workers.cluster_log2;
  const int count = launch.workers.count;
  const int workers = items <= count ? quotient(count, items) * items : count;
  const int blocks = workers << cluster_log2;
  // Workers' shares come in the opposite order of blocks.
  const int worker = workers - 1 - (static_cast<int>(blockIdx.x) >> cluster_log2);
  const int rank = static_cast<int>(blockIdx.x) & (launch.workers.cluster() - 1);
  if (worker < 0) {
    return {};
  }
  const int at = ((worker << cluster_log2) + rank) * items;
  const int item = quotient(at, blocks);
  const int head = quotient(item, launch.shape.head_blocks);
  const int sequence = quotient(head, p.kv_heads);
  const SequenceLengths lengths = lengths_of(p, sequence, peek);
  const CacheKeys keys = launch.shape.keys_of(lengths);
  const int tile_first = keys.first(0) / kDecodeTileKeys;
  const int tiles = max(ceil_div(keys.end(lengths.q_len - 1), kDecodeTileKeys) - tile_first, 0);
  const int first = at - item * blocks;  // in 1 / blocks of the item
  const int end = min(first + items, blocks);
  const TileRange guessed{.first = tile_first + quotient(first * tiles, blocks),
                          .end = tile_first + quotient(end * tiles + blocks - 1, blocks)};
  if (guessed.first < 0) {  // products beyond the range of int
    return {};
  }
  return {.sequence = sequence, .kv_head = head - sequence * p.kv_heads, .tiles = guessed};
}

// Brings the first tiles that the block guesses to be its own to L2, of K or of V. Each lane finds
// the page of a box, and one lane asks for all of them. A warp calls it.
template <typename Tile>
__device__ __forceinline__ void prefetch_tiles(const Params& p, const Launch& launch,
                                               const CUtensorMap& map) {
  constexpr int kTiles = 4;
  constexpr int kNoPage = -1;  // TMA brings nothing of it
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kBoxColumns = Tile::kBox_bytes / 2;  // TMA counts in 16 bits
  const auto& rows = p.rows;
  const CacheBoxes& boxes = launch.boxes;
  const int tile_boxes = 1 << (std::countr_zero(unsigned{kDecodeTileKeys}) - boxes.rows_log2);
  const GuessedTiles guessed = guess_tiles(p, launch);
  const int count = min(guessed.tiles.end - guessed.tiles.first, kTiles) * tile_boxes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int box_of_lane = guessed.tiles.first * tile_boxes + lane;
  int page_of_lane = guessed.sequence;
  if (rows.block_table != nullptr) {
    const int index = boxes.page_of(box_of_lane);
    page_of_lane = lane < count && index < rows.max_pages
                       ? peek(rows.block_table + guessed.sequence * rows.table_stride + index)
                       : kNoPage;
  } else if (rows.cache_batch_idx != nullptr) {
    page_of_lane = peek(rows.cache_batch_idx + guessed.sequence);
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int page = __shfl_sync(kAll, page_of_lane, i);
    const int row = __shfl_sync(kAll, boxes.row_in_page(box_of_lane), i);
    if (cute::elect_one_sync()) {
#pragma unroll
      for (int column = 0; column < Tile::kBoxes * kBoxColumns; column += kBoxColumns) {
        cute::SM90_TMA_LOAD_4D::PREFETCH::copy(&map, column, row, guessed.kv_head, page);
      }
    }
  }
}

// The same where rows are copied, of a side of the caches: a lane brings every 32nd row.
template <typename Tile, int kCache_bytes>
__device__ __forceinline__ void prefetch_rows(const Params& p, const Launch& launch,
                                              const void* base, const OuterStrides& stride) {
  constexpr int kTiles = 2;
  constexpr int kLine_bytes = 128;
  const auto& rows = p.rows;
  const GuessedTiles guessed = guess_tiles(p, launch);
  const int end = min(guessed.tiles.end, guessed.tiles.first + kTiles) * kDecodeTileKeys;
  int page = guessed.sequence;
  if (rows.block_table == nullptr && rows.cache_batch_idx != nullptr) {
    page = peek(rows.cache_batch_idx + guessed.sequence);
  }
#pragma unroll 1
  for (int key = guessed.tiles.first * kDecodeTileKeys + static_cast<int>(threadIdx.x) % 32;
       key < min(end, rows.capacity); key += 32) {
    if (rows.block_table != nullptr) {
      page =
          peek(rows.block_table + guessed.sequence * rows.table_stride + launch.rows.page_of(key));
    }
    if (page >= 0 && page < rows.cache_rows) {
      const std::int64_t offset = page * stride.batch + launch.rows.row_in_page(key) * stride.seq +
                                  guessed.kv_head * stride.head;
      const auto* const row = static_cast<const std::uint8_t*>(base) + offset * kCache_bytes;
#pragma unroll
      for (int i = 0; i < Tile::kRow_bytes; i += kLine_bytes) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + i));
      }
    }
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
