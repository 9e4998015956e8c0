// How rotate_quantize stores a block: as rows, or transposed. The bytes go through SMEM.
#pragma once

#include "common/columns.hpp"
#include "cuda/common/numeric.cuh"
#include "cuda/rotate_quantize/block.cuh"

namespace tilewright::cuda::rotate_quantize {

// Writes a thread's values to SMEM as bytes.
template <typename P, typename Tile>
__device__ void write_bytes(const P& part, float factor, Tile& tile) {
  const auto word = [&](int i) {
    const float* const x = part.x + i;
    return pack_e4m3x4(__fmul_rn(x[0], factor), __fmul_rn(x[1], factor), __fmul_rn(x[2], factor),
                       __fmul_rn(x[3], factor));
  };
#pragma unroll
  for (int i = 0; i < kThreadValues; i += 16) {
    *reinterpret_cast<uint4*>(&tile.words[Tile::place(P::row(), (P::dim() + i) / 4)]) =
        make_uint4(word(i), word(i + 4), word(i + 8), word(i + 12));
  }
}

// Stores a warp's rows.
template <typename W, typename P, typename Tile>
__device__ void store_rows(const RotateQuantizeParams& p, const Block& block, const P& part,
                           float factor, Tile& tile) {
  __syncwarp();  // no lane reads the block before any more
  write_bytes(part, factor, tile);
  __syncwarp();
  std::uint8_t* const out =
      p.out + p.out_stride.offset(block.entry, block.first + W::row(), block.head) + W::dim();
#pragma unroll
  for (int i = 0; i < kThreadVectors; ++i) {
    const int row = W::row() + i * W::kRowStep;
    if (row < block.rows.count) {
      *reinterpret_cast<uint2*>(out + i * W::kRowStep * p.out_stride.seq) =
          *reinterpret_cast<const uint2*>(&tile.words[Tile::place(row, W::dim() / 4)]);
    }
  }
}

// A 4 x 4 transpose of bytes: word i of the result has byte i of each word.
__device__ inline void transpose_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t low01 = __byte_perm(w[0], w[1], 0x5140);
  const std::uint32_t high01 = __byte_perm(w[0], w[1], 0x7362);
  const std::uint32_t low23 = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// Where the columns of the block's rows begin.
__device__ inline int first_column_of(const RotateQuantizeParams& p, const Block& block) {
  return first_column(p.blocks.cu_seqlens, block.rows.sequence) + block.rows.first;
}

// Where the columns of the block's sequence end, with those of no row behind them.
__device__ inline int end_of_columns(const RotateQuantizeParams& p, const Block& block) {
  const int next = block.rows.sequence + 1;
  return p.blocks.cu_seqlens == nullptr || next == p.blocks.batch
             ? p.out_columns
             : first_column(p.blocks.cu_seqlens, next);
}

// Stores the block's columns, and zeros in the place of rows that there are not. A thread takes
// four dims of 16 columns.
template <int kHeadDim, int kRows, typename P>
__device__ void store_transposed(const RotateQuantizeParams& p, const Block& block, const P& part,
                                 float factor, ByteTile<kHeadDim, kRows>& tile) {
  using Tile = ByteTile<kHeadDim, kRows>;
  if (p.descale == nullptr) {
    __syncthreads();  // nobody reads the block before any more; else descale_of() has waited for it
  }
  write_bytes(part, factor, tile);
  __syncthreads();

  constexpr int kChunks = kRows / kColumnMultiple;
  static_assert(kChunks * (kHeadDim / 4) == threads_of(kHeadDim, kRows));
  const int row0 = kColumnMultiple * (static_cast<int>(threadIdx.x) % kChunks);
  const int word = static_cast<int>(threadIdx.x) / kChunks;
  const int column0 = first_column_of(p, block) + row0;
  if (column0 >= end_of_columns(p, block)) {
    return;
  }
  std::uint32_t bytes[4][4];
#pragma unroll
  for (int i = 0; i < kColumnMultiple; ++i) {
    const int row = row0 + i;
    bytes[i / 4][i % 4] = row < block.rows.count ? tile.words[Tile::place(row, word)] : 0;
  }
#pragma unroll
  for (auto& columns : bytes) {
    transpose_bytes(columns);
  }
  std::uint8_t* const out =
      p.out + p.out_stride.offset(block.entry, column0, block.head) + 4 * word * p.out_dim_stride;
#pragma unroll
  for (int dim = 0; dim < 4; ++dim) {
    *reinterpret_cast<uint4*>(out + dim * p.out_dim_stride) =
        make_uint4(bytes[0][dim], bytes[1][dim], bytes[2][dim], bytes[3][dim]);
  }
}

// Sets the columns behind those of a head's last block to 0.
__device__ inline void clear_columns(const RotateQuantizeParams& p, const Block& block) {
  const int first = first_column_of(p, block) + p.blocks.rows;
  if (first >= p.out_columns) {
    return;
  }
  std::uint8_t* const out = p.out + p.out_stride.offset(block.entry, 0, block.head);
  for (int dim = 0; dim < p.head_dim; ++dim) {
    for (int column = first + threadIdx.x; column < p.out_columns; column += blockDim.x) {
      out[dim * p.out_dim_stride + column] = 0;
    }
  }
}

}  // namespace tilewright::cuda::rotate_quantize
