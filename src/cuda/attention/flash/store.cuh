// Stores what a consumer has of a tile: its rows' results, and O where TMA cannot store it.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/attention/flash/tiles.cuh"

namespace tilewright::cuda {

// Stores the results of the rows from row0 on. Of the lanes that share a row, the first one does.
template <int kRows, typename TensorC>
__device__ void store_results(const AttentionParams& p, const FlashTile& tile, int row0,
                              const TensorC& cO, const RowResult (&result)[kRows]) {
  if (wants_statistics(p) && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row0 + cute::get<0>(cO(i, 0));
      if (row < tile.q_len) {
        store_statistics(p, tile.out_batch, tile.q_start + row, tile.head, result[i]);
      }
    }
  }
}

// Can TMA store this tile's O? It would also store rows beyond a packed sequence's end.
template <int kBr>
__device__ bool goes_by_tma(const AttentionParams& p, const FlashTile& tile) {
  return p.row_max == nullptr && (p.cu_seqlens_q == nullptr || tile.row0 + kBr <= tile.q_len);
}

// Stores rows of O from registers: in FP32 if un-normalised, else in 16 bits.
template <typename Element, typename TiledMma, typename TensorO, typename TensorC>
__device__ void store_rows(const AttentionParams& p, const FlashTile& tile, int row0,
                           const TensorO& rO, const TensorC& cO) {
#pragma unroll
  for (int i = 0; i < cute::size<0>(rO); ++i) {
    const int in_sequence = row0 + cute::get<0>(cO(i, 0));
    const bool exists = in_sequence < tile.q_len;
    const int row = tile.q_start + in_sequence;
    if (p.row_max != nullptr) {
      auto* const out = row_pointer<float>(p.o, p.o_stride, tile.out_batch, row, tile.head);
      store_row<TiledMma>(out, rO, i, exists);
    } else {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, tile.out_batch, row, tile.head);
      store_row<TiledMma>(out, rO, i, exists);
    }
  }
}

}  // namespace tilewright::cuda
