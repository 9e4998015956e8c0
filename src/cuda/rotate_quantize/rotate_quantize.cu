// rotate_quantize: a thread block takes one block of rows of one head after another. All of a block
// stays in its registers, and meanwhile the next one is on its way to SMEM.
//
//   next block         ------------------------- cp.async ------------------------->
//   block   from SMEM | signs, butterflies | largest magnitude --> descale | e4m3, store
//
// Source    tilewright/rotate_quantize.hpp has the arithmetic, whose order is kept: CPU and GPU
//           give the same bytes. The Hadamard matrix in log2(D) stages of sums and differences:
//           fast Walsh-Hadamard transform.
// Tiles     M = 64 or 128 rows x D, M D / 64 threads: a thread has 64 values. Four lanes share a
//           row; lane l has its vectors l, l + 4, l + 8, ... of eight values. An SM has as many
//           blocks as make 512 threads.
// Rotation  Signs change in pairs of 16 bits, before the values become FP32. Butterflies over dims
//           that differ by 1, 2, 4 and by 32 and more lie within a thread. Those over 8 and 16 take
//           a shuffle for each value. A lane computes x[i] + x[i + h] or x[i] - x[i + h] as one FMA
//           with a factor of 1 or -1, which rounds the same.
// SMEM      The next block's rows, 2 M D bytes, of which each thread reads what it has asked for,
//           and no barrier is needed; signs. out_transposed also has the rows' bytes, M D. Word w
//           of row r lies at w XOR 4 f(r), where f has other values for rows that lanes write or
//           read together.
// Registers up to 128.
// Limits    D = 64, 128 or 256. Rows of x are aligned to 16 bytes, those of out to 8. A store of
//           out_transposed has 16 columns, as all sequences' columns begin and end at multiples of
//           16. With RoPE, rows come straight from memory and not ahead.
// Format    docs/fp8.md
#include <algorithm>
#include <cfloat>

#include "common/block_scale.hpp"
#include "common/ceil_div.hpp"
#include "cuda/common/copy_async.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/source_row.cuh"
#include "ops/rotate_quantize/params.hpp"

namespace tilewright::cuda {
namespace rotate_quantize {

constexpr int kLanes = 4;          // of a row
constexpr int kThreadValues = 64;  // of all rows
constexpr int kThreadsPerSm = 512;

constexpr int threads_of(int head_dim, int rows) { return rows * head_dim / kThreadValues; }
constexpr int blocks_per_sm(int head_dim, int rows) {
  return kThreadsPerSm / threads_of(head_dim, rows);
}

// A thread's part of the block: rows `first_row + kRowStep * i`, and of each the vectors
// `lane + kLanes * j`.
template <int kHeadDim, int kRows>
struct Part {
  static constexpr int kThreads = threads_of(kHeadDim, kRows);
  static constexpr int kRowStep = kThreads / kLanes;
  static constexpr int kRowCount = kRows / kRowStep;
  static constexpr int kVectors = kHeadDim / (kVector * kLanes);
  static constexpr int kValues = kVector * kVectors;  // of a row

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static int row(int i) { return threadIdx.x / kLanes + kRowStep * i; }
  __device__ static int dim(int value) {
    return kVector * (lane() + kLanes * (value / kVector)) + value % kVector;
  }

  float x[kRowCount][kValues];
};

// The block's bytes in SMEM.
template <int kHeadDim, int kRows>
struct ByteTile {
  std::uint32_t words[kRows * kHeadDim / 4];

  // The place of word `word` of a row. Words of a row move by whole vectors of 16 bytes, within
  // their 128 bytes of SMEM.
  __device__ static int place(int row, int word) {
    const int line = kHeadDim == 64 ? row / 2 : row;  // of 128 bytes, or the first of two
    return (row * (kHeadDim / 4) + word) ^ 4 * ((line + row / 16) % 8);
  }
};

template <int kHeadDim, int kRows>
struct SharedStorage {
  static constexpr int kThreads = threads_of(kHeadDim, kRows);
  uint4 next[kThreadValues / kVector][kThreads];  // a thread's vectors of the next block
  uint4 signs[kHeadDim / kVector];          // of a vector: the sign bits of eight 16-bit values
  std::uint32_t largest[2][kThreads / 32];  // of the warps; for every other block
  ByteTile<kHeadDim, kRows> tile;
};

// The block's place: its rows in x, counted from the batch entry's first.
struct Block {
  RowBlock rows;
  int entry;
  int index;
  int head;
  int first;  // row, in the batch entry

  __device__ Block(const RotateQuantizeParams& p, int number) : entry(0), head(number % p.heads) {
    number /= p.heads;
    const int count = p.blocks.count();
    index = number % count;
    entry = number / count;
    rows = p.blocks.block(entry, index);
    first = rows.first + (p.blocks.cu_seqlens == nullptr ? 0 : p.blocks.cu_seqlens[rows.sequence]);
  }
};

// ---- Loading

// A row's position; -1 if it is not in the tables.
__device__ std::int64_t position_of(const RotateQuantizeParams& p, const Block& block, int row) {
  const std::int64_t position =
      p.positions == nullptr
          ? block.rows.first + row
          : p.positions[block.entry * p.positions_batch_stride + block.first + row];
  return position >= 0 && position < p.max_positions ? position : -1;
}

// Asks for a thread's vectors of a block. Rows that there are not are zeros.
template <typename T, typename P, typename Storage>
__device__ void fetch(const RotateQuantizeParams& p, const Block& block, Storage& shared) {
  const auto* const x = static_cast<const T*>(p.x) +
                        p.x_stride.offset(block.entry, block.first + P::row(0), block.head) +
                        P::dim(0);
#pragma unroll
  for (int i = 0; i < P::kRowCount; ++i) {
    const bool exists = P::row(i) < block.rows.count;
    const T* const row = exists ? x + i * P::kRowStep * p.x_stride.seq : x;
#pragma unroll
    for (int j = 0; j < P::kVectors; ++j) {
      const auto target = static_cast<std::uint32_t>(
          __cvta_generic_to_shared(&shared.next[i * P::kVectors + j][threadIdx.x]));
      copy_async<16>(target, row + kVector * kLanes * j, exists);
    }
  }
}

// Takes what fetch() has asked for, with the signs of the rotation.
template <typename T, typename P, typename Storage>
__device__ void take(const Storage& shared, P& part) {
  wait_for_copies();
#pragma unroll
  for (int j = 0; j < P::kVectors; ++j) {
    const uint4 signs = shared.signs[P::dim(kVector * j) / kVector];
#pragma unroll
    for (int i = 0; i < P::kRowCount; ++i) {
      const uint4 raw = shared.next[i * P::kVectors + j][threadIdx.x];
      const uint4 signed_raw =
          make_uint4(raw.x ^ signs.x, raw.y ^ signs.y, raw.z ^ signs.z, raw.w ^ signs.w);
      const Float8 values = load_eight(reinterpret_cast<const T*>(&signed_raw));
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        part.x[i][kVector * j + k] = values.value[k];
      }
    }
  }
}

// Loads a block with RoPE, and changes signs. Rows that there are not, and those whose position is
// not in the tables, are zeros.
template <typename T, typename P, typename Storage>
__device__ void load(const RotateQuantizeParams& p, const Block& block, const Storage& shared,
                     P& part) {
#pragma unroll
  for (int i = 0; i < P::kRowCount; ++i) {
    const int row = P::row(i);
    const bool exists = row < block.rows.count;
    const std::int64_t position = exists ? position_of(p, block, row) : -1;
    const std::int64_t offset = p.x_stride.offset(block.entry, block.first + row, block.head);
    const SourceRow<T> source{static_cast<const T*>(p.x) + offset, p.rotary, p.rotary.dims,
                              position};
#pragma unroll
    for (int j = 0; j < P::kVectors; ++j) {
      const int dim = P::dim(kVector * j);
      const Float8 values = position >= 0 ? source.eight(dim) : Float8{};
      const uint4 signs = shared.signs[dim / kVector];
      const std::uint32_t words[] = {signs.x, signs.y, signs.z, signs.w};
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const std::uint32_t sign = words[k / 2] << (k % 2 == 0 ? 16 : 0) & 0x80000000u;
        part.x[i][kVector * j + k] = __uint_as_float(__float_as_uint(values.value[k]) ^ sign);
      }
    }
  }
}

// ---- Rotation

// The sign bits of a pair of dims, from `dim` on, as those of 16-bit values in a word.
__device__ inline std::uint32_t sign_bits(const RotateQuantizeParams& p, int dim) {
  const std::uint32_t bits =
      p.negative_dims.words[dim / NegativeDims::kBits] >> dim % NegativeDims::kBits;
  return (bits & 1u) << 15 | (bits & 2u) << 30;
}

template <int kHeadDim, typename Storage>
__device__ void write_signs(const RotateQuantizeParams& p, Storage& shared) {
  const int vector = static_cast<int>(threadIdx.x);
  if (vector < kHeadDim / kVector) {
    const int dim = kVector * vector;
    shared.signs[vector] = p.is_rotated ? make_uint4(sign_bits(p, dim), sign_bits(p, dim + 2),
                                                     sign_bits(p, dim + 4), sign_bits(p, dim + 6))
                                        : uint4{};
  }
  __syncthreads();
}

// Butterflies over values of a thread that are kDistance apart.
template <int kDistance, int kValues>
__device__ void butterflies(float (&x)[kValues]) {
#pragma unroll
  for (int first = 0; first < kValues; ++first) {
    if ((first & kDistance) == 0) {
      const float a = x[first];
      const float b = x[first + kDistance];
      x[first] = __fadd_rn(a, b);
      x[first + kDistance] = __fsub_rn(a, b);
    }
  }
}

// Butterflies over the values of lanes that are kDistance apart.
template <int kDistance, int kValues>
__device__ void butterflies_of_lanes(float (&x)[kValues]) {
  const float sign = (threadIdx.x & kDistance) == 0 ? 1.0f : -1.0f;
#pragma unroll
  for (float& own : x) {
    own = __fmaf_rn(own, sign, __shfl_xor_sync(0xffffffffu, own, kDistance));
  }
}

template <typename P>
__device__ void rotate(const RotateQuantizeParams& p, P& part) {
#pragma unroll
  for (auto& x : part.x) {
    butterflies<1>(x);
    butterflies<2>(x);
    butterflies<4>(x);
    butterflies_of_lanes<1>(x);  // dims 8 apart
    butterflies_of_lanes<2>(x);  // 16
    if constexpr (P::kVectors >= 2) {
      butterflies<kVector>(x);  // 32
    }
    if constexpr (P::kVectors >= 4) {
      butterflies<2 * kVector>(x);  // 64
    }
    if constexpr (P::kVectors >= 8) {
      butterflies<4 * kVector>(x);  // 128
    }
#pragma unroll
    for (float& value : x) {
      value = __fmul_rn(value, p.rotation_factor);
    }
  }
}

// ---- Descales

// The largest magnitude of a thread's values, or of those that are finite. A NaN has none.
template <bool kOfFinite, typename P>
__device__ float largest_of_thread(const P& part) {
  float largest = 0.0f;
#pragma unroll
  for (const auto& x : part.x) {
#pragma unroll
    for (const float value : x) {
      const bool counts = !kOfFinite || fabsf(value) <= FLT_MAX;
      largest = fmaxf(largest, counts ? fabsf(value) : 0.0f);
    }
  }
  return largest;
}

// That of the block, in all threads. Magnitudes are in the order of their bits.
template <typename P, int kWarps>
__device__ float largest_of_block(const P& part, std::uint32_t (&of_warps)[kWarps]) {
  float own = largest_of_thread<false>(part);
  if (own > FLT_MAX) {
    own = largest_of_thread<true>(part);
  }
  const std::uint32_t bits = __float_as_uint(own);
  of_warps[threadIdx.x / 32] = __reduce_max_sync(0xffffffffu, bits);
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (const std::uint32_t of_warp : of_warps) {
    largest = max(largest, of_warp);
  }
  return __uint_as_float(largest);
}

template <typename P, int kWarps>
__device__ float descale_of(const RotateQuantizeParams& p, const Block& block, const P& part,
                            std::uint32_t (&of_warps)[kWarps]) {
  if (p.descale == nullptr) {
    return p.fixed_descale[p.descale_stride.offset(block.rows.sequence, 0, block.head)];
  }
  const float amax = largest_of_block(part, of_warps);
  const float descale = amax == 0.0f ? 1.0f : fmaxf(__fdiv_rn(amax, kE4m3Max), FLT_MIN);
  if (threadIdx.x == 0) {
    p.descale[p.descale_stride.offset(block.entry, block.index, block.head)] = descale;
  }
  return descale;
}

// ---- Storing

// Eight values as bytes, the first in the lowest.
__device__ uint2 quantize(const float* x, float inverse) {
  const auto word = [&](int i) {
    return pack_e4m3x4(__fmul_rn(x[i], inverse), __fmul_rn(x[i + 1], inverse),
                       __fmul_rn(x[i + 2], inverse), __fmul_rn(x[i + 3], inverse));
  };
  return {word(0), word(4)};
}

template <typename P>
__device__ void store_rows(const RotateQuantizeParams& p, const Block& block, const P& part,
                           float inverse) {
  std::uint8_t* const out =
      p.out + p.out_stride.offset(block.entry, block.first + P::row(0), block.head) + P::dim(0);
#pragma unroll
  for (int i = 0; i < P::kRowCount; ++i) {
    if (P::row(i) < block.rows.count) {
      std::uint8_t* const row = out + i * P::kRowStep * p.out_stride.seq;
#pragma unroll
      for (int j = 0; j < P::kVectors; ++j) {
        *reinterpret_cast<uint2*>(row + kVector * kLanes * j) =
            quantize(&part.x[i][kVector * j], inverse);
      }
    }
  }
}

// A 4 x 4 transpose of bytes: word i of the result has byte i of each word.
__device__ void transpose_bytes(std::uint32_t (&w)[4]) {
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
__device__ int first_column_of(const RotateQuantizeParams& p, const Block& block) {
  return first_column(p.blocks.cu_seqlens, block.rows.sequence) + block.rows.first;
}

// Where the columns of the block's sequence end, with those of no row behind them.
__device__ int end_of_columns(const RotateQuantizeParams& p, const Block& block) {
  const int next = block.rows.sequence + 1;
  return p.blocks.cu_seqlens == nullptr || next == p.blocks.batch
             ? p.out_columns
             : first_column(p.blocks.cu_seqlens, next);
}

// Stores the block's columns, and zeros in the place of rows that there are not. A thread takes
// four dims of 16 columns.
template <int kHeadDim, int kRows, typename P>
__device__ void store_transposed(const RotateQuantizeParams& p, const Block& block, const P& part,
                                 float inverse, ByteTile<kHeadDim, kRows>& tile) {
  using Tile = ByteTile<kHeadDim, kRows>;
  __syncthreads();  // nobody reads the block before any more
#pragma unroll
  for (int i = 0; i < P::kRowCount; ++i) {
#pragma unroll
    for (int j = 0; j < P::kVectors; ++j) {
      *reinterpret_cast<uint2*>(&tile.words[Tile::place(P::row(i), P::dim(kVector * j) / 4)]) =
          quantize(&part.x[i][kVector * j], inverse);
    }
  }
  __syncthreads();

  constexpr int kChunks = kRows / kColumnMultiple;
  static_assert(kChunks * (kHeadDim / 4) == P::kThreads);
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
__device__ void clear_columns(const RotateQuantizeParams& p, const Block& block) {
  const int first = first_column_of(p, block) + p.blocks.rows;
  std::uint8_t* const out = p.out + p.out_stride.offset(block.entry, 0, block.head);
  for (int dim = 0; dim < p.head_dim; ++dim) {
    for (int column = first + threadIdx.x; column < p.out_columns; column += blockDim.x) {
      out[dim * p.out_dim_stride + column] = 0;
    }
  }
}

template <typename T, int kHeadDim, int kRows, bool kHasRope>
__global__ void __launch_bounds__(threads_of(kHeadDim, kRows), blocks_per_sm(kHeadDim, kRows))
    rotate_quantize(const __grid_constant__ RotateQuantizeParams p, int blocks) {
  using P = Part<kHeadDim, kRows>;
  extern __shared__ __align__(16) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<kHeadDim, kRows>*>(smem);
  write_signs<kHeadDim>(p, shared);
  const int step = static_cast<int>(gridDim.x);
  int number = static_cast<int>(blockIdx.x);
  Block next(p, number);
  if constexpr (!kHasRope) {
    fetch<T, P>(p, next, shared);
  }
  for (int parity = 0; number < blocks; number += step, parity ^= 1) {
    const Block block = next;
    const bool has_next = number + step < blocks;
    if (has_next) {
      next = Block(p, number + step);
    }
    P part;
    if constexpr (kHasRope) {
      load<T>(p, block, shared, part);
    } else {
      take<T>(shared, part);
      if (has_next) {
        fetch<T, P>(p, next, shared);
      }
    }
    if (p.is_rotated) {
      rotate(p, part);
    }
    const float inverse = __fdiv_rn(1.0f, descale_of(p, block, part, shared.largest[parity]));
    if (!p.is_transposed) {
      store_rows(p, block, part, inverse);
      continue;
    }
    store_transposed(p, block, part, inverse, shared.tile);
    if (block.index == p.blocks.count() - 1) {
      clear_columns(p, block);
    }
  }
}

template <typename T, int kRows, bool kHasRope>
void launch_rows(const RotateQuantizeParams& p, Stream stream) {
  const bool is_packed = p.blocks.cu_seqlens != nullptr;
  const int blocks = p.blocks.count() * p.heads * (is_packed ? 1 : p.blocks.batch);
  dispatch_head_dim<64, 128, 256>(p.head_dim, [&]<int kHeadDim>() {
    const int resident = p.multiprocessors * blocks_per_sm(kHeadDim, kRows);
    launch<rotate_quantize<T, kHeadDim, kRows, kHasRope>>(
        std::min(blocks, resident), threads_of(kHeadDim, kRows),
        sizeof(SharedStorage<kHeadDim, kRows>), stream, p, blocks);
  });
}

template <typename T, bool kHasRope>
void launch_rope(const RotateQuantizeParams& p, Stream stream) {
  if (p.blocks.rows == 64) {
    launch_rows<T, 64, kHasRope>(p, stream);
  } else {
    launch_rows<T, 128, kHasRope>(p, stream);
  }
}

template <typename T>
void launch_type(const RotateQuantizeParams& p, Stream stream) {
  if (p.rotary.dims > 0) {
    launch_rope<T, true>(p, stream);
  } else {
    launch_rope<T, false>(p, stream);
  }
}

}  // namespace rotate_quantize

void launch_rotate_quantize(const RotateQuantizeParams& p, Stream stream) {
  if (p.dtype == DType::fp16) {
    rotate_quantize::launch_type<__half>(p, stream);
  } else {
    rotate_quantize::launch_type<__nv_bfloat16>(p, stream);
  }
}

}  // namespace tilewright::cuda
