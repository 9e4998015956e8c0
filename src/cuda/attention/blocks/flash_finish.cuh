// How a consumer finishes its rows of a tile: their results, and O. `Params` are the params of an
// operation with the members that row_results.cuh names, an o with its stride, and packed_q.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/flash_tiles.cuh"
#include "cuda/attention/blocks/lazy_softmax.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/row_results.cuh"
#include "cuda/attention/blocks/store_rows.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {

// Stores the results of the rows from row0 on. Of the lanes that share a row, the first one does.
template <typename Params, int kRows, typename TensorC>
__device__ void store_results(const Params& p, const FlashTile& tile, int row0, const TensorC& cO,
                              const RowResult (&result)[kRows]) {
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

// Finishes the rows from row0 on while their last P V still runs: stores their results, and
// computes the factors that O must be scaled by.
template <typename Element, typename TiledMma, typename Params, int kRows, typename TensorC>
__device__ __forceinline__ void finish_statistics(const Params& p, const FlashTile& tile, int row0,
                                                  const TensorC& cO, const LazyRows<kRows>& rows,
                                                  float scale_log2, float (&factor)[kRows]) {
  RowResult result[kRows];
  finish_rows<Element, TiledMma>(rows, scale_log2, p.statistics.max != nullptr, result);
  if (p.sinks.logits != nullptr) {
    add_sink(result, p.sinks.logits[tile.head * p.sinks.stride]);
  }
  output_factors(result, p.statistics.max == nullptr, factor);
  store_results(p, tile, row0, cO, result);
}

// Can TMA store this tile's O? It would also store rows beyond a packed sequence's end.
template <int kBr, typename Params>
__device__ bool goes_by_tma(const Params& p, const FlashTile& tile) {
  return p.statistics.max == nullptr &&
         (p.packed_q.cu_seqlens == nullptr || tile.row0 + kBr <= tile.q_len);
}

// Stores rows of O from registers: in FP32 if un-normalised, else in 16 bits.
template <typename Element, typename TiledMma, typename Params, typename TensorO, typename TensorC>
__device__ void store_rows(const Params& p, const FlashTile& tile, int row0, const TensorO& rO,
                           const TensorC& cO) {
#pragma unroll
  for (int i = 0; i < cute::size<0>(rO); ++i) {
    const int in_sequence = row0 + cute::get<0>(cO(i, 0));
    const bool exists = in_sequence < tile.q_len;
    const int row = tile.q_start + in_sequence;
    if (p.statistics.max != nullptr) {
      auto* const out = row_pointer<float>(p.o, p.o_stride, tile.out_batch, row, tile.head);
      store_row<TiledMma>(out, rO, i, exists);
    } else {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, tile.out_batch, row, tile.head);
      store_row<TiledMma>(out, rO, i, exists);
    }
  }
}

// Stores a consumer's O: by TMA through its slot, or from registers. `at` is the slot's position,
// and rO are the rows of tOrO.
template <typename Config, typename Output, typename Params, typename TensorO, typename TensorR,
          typename TensorC>
__device__ __forceinline__ void finish_output(Output& output, const Params& p,
                                              const FlashTile& tile, int row0, int consumer,
                                              RingPosition<1>& at, const TensorO& tOrO,
                                              const TensorR& rO, const TensorC& cO) {
  bool by_tma = goes_by_tma<Config::C.br()>(p, tile);
  // If packed, it depends on the tile. All lanes agree, but only the vote tells the compiler so.
  if (p.packed_q.cu_seqlens != nullptr) {
    by_tma = __all_sync(0xffffffffu, by_tma);
  }
  if (by_tma) {
    output.put(tOrO, consumer, at);
    at.advance();
  } else {
    store_rows<typename Config::Element, typename Config::Tiles::TiledMmaPv>(p, tile, row0, rO, cO);
  }
}

}  // namespace tilewright::cuda
