// How rotate_quantize stores a block: as rows, or transposed. The bytes go through SMEM.
#pragma once

#include "common/columns.hpp"
#include "cuda/common/numeric.cuh"
#include "cuda/rotate_quantize/block.cuh"

namespace tilewright::cuda::rotate_quantize {

// Writes a thread's values to SMEM as bytes.
template <typename P, typename Tile>
__device__ void write_bytes(const P& part, bool is_rotated, float factor, Tile& tile) {
  const float zero = is_rotated ? 0.0f : -0.0f;  // -0 + 0 is 0, and x + -0 is x
  const unsigned thread = this_thread();
  const int lane = P::lane(thread);
  const unsigned first = Tile::place(P::row(thread), P::first_dim(lane, is_rotated) / 4);
  const auto quarter = P::template apart<P::kQuarter>(lane, is_rotated);
  const auto half = P::template apart<P::kHalf>(lane, is_rotated);
#pragma unroll
  for (int i = 0; i < kThreadValues; i += P::kQuarter) {
    bool is_negative = false;
    unsigned place = first;
    if (i & P::kQuarter) {
      is_negative ^= quarter.is_negative;
      place ^= quarter.dims / 4;
    }
    if (i & P::kHalf) {
      is_negative ^= half.is_negative;
      place ^= half.dims / 4;
    }
    const float its_factor = is_negative ? -factor : factor;
    const auto word = [&](int k) {
      const float* const x = part.x + i + k;
      return pack_e4m3x4(__fmaf_rn(x[0], its_factor, zero), __fmaf_rn(x[1], its_factor, zero),
                         __fmaf_rn(x[2], its_factor, zero), __fmaf_rn(x[3], its_factor, zero));
    };
    *reinterpret_cast<uint4*>(&tile.words[place]) = make_uint4(word(0), word(4), word(8), word(12));
  }
}

// Stores a warp's rows.
template <typename W, typename P, typename Tile>
__device__ void store_rows(const RotateQuantizeParams& p, const Block& block, const P& part,
                           float factor, Tile& tile) {
  __syncwarp();  // no lane reads the block before any more
  write_bytes(part, p.is_rotated, factor, tile);
  __syncwarp();
  std::uint8_t* out =
      p.out + p.out_stride.offset(block.entry, block.first + W::row(), block.head) + W::dim();
  const std::int64_t step = W::kRowStep * p.out_stride.seq;
  const int rows = block.rows.count - W::row();
#pragma unroll
  for (int i = 0; i < kThreadVectors; ++i, out += step) {
    if (i * W::kRowStep < rows) {
      const unsigned place = Tile::place(W::row() + i * W::kRowStep, W::dim() / 4);
      *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(&tile.words[place]);
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
  write_bytes(part, p.is_rotated, factor, tile);
  __syncthreads();

  constexpr unsigned kGroups = kRows / kColumnMultiple;
  static_assert(kGroups * (kHeadDim / 4) == threads_of(kHeadDim, kRows));
  const unsigned thread = this_thread();
  const unsigned group = thread % kGroups;
  const unsigned word = thread / kGroups;
  const int row0 = kColumnMultiple * static_cast<int>(group);
  const int column0 = first_column_of(p, block) + row0;
  if (column0 >= end_of_columns(p, block)) {
    return;
  }
  std::uint32_t bytes[4][4];
#pragma unroll
  for (int i = 0; i < kColumnMultiple; ++i) {
    bytes[i / 4][i % 4] = tile.words[Tile::place(group, i, word)];
  }
  if (block.rows.count < kRows) {
#pragma unroll
    for (int i = 0; i < kColumnMultiple; ++i) {
      bytes[i / 4][i % 4] = row0 + i < block.rows.count ? bytes[i / 4][i % 4] : 0;
    }
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
