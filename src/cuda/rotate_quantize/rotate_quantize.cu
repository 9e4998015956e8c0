// rotate_quantize: a thread block takes one block of rows of one head after another. All of a block
// stays in its registers, and meanwhile the next one is on its way to SMEM.
//
//   next block         ------------------------- cp.async ------------------------->
//   block   from SMEM | signs, butterflies | largest magnitude --> descale | e4m3, store
//
// Source    tilewright/rotate_quantize.hpp has the arithmetic, whose order is kept: CPU and GPU
//           give the same bytes. The Hadamard matrix in log2(D) stages of sums and differences:
//           fast Walsh-Hadamard transform.
// Tiles     M = 64 or 128 rows x D, M D / 64 threads: a thread has 64 neighbouring values of a row,
//           and D / 64 lanes share a row. An SM has as many blocks as make 512 threads.
// Memory    A warp has whole rows. Memory sees them in order, eight values a lane at a time; SMEM
//           takes them to the lanes that have them, and their bytes back. So a warp that stores
//           rows waits for other warps at the block's largest magnitude alone.
// Rotation  Signs change in pairs of 16 bits, before the values become FP32. Butterflies over dims
//           that differ by 32 and less lie within a thread. For those over 64, two lanes exchange
//           half of their values: each then has both values of half of the pairs, and keeps sums
//           and differences. The same for 128. All lanes send the same registers, as they have
//           loaded their values in orders of their own. Where that exchanges a pair of a thread,
//           its sum and difference are FMAs with a factor of 1 or -1, which round the same. A lane
//           that has the second values of pairs gets differences of the other sign, which the
//           factor of the bytes takes back.
// SMEM      The next block's rows, 2 M D bytes; its bytes, M D; signs. A lane's 128 bytes are eight
//           vectors, of which number j lies at j XOR lane % 8. Word w of the bytes of row r lies at
//           w XOR 4 f(r), where f has other values for rows that lanes write or read together.
// Registers up to 128.
// Limits    D = 64, 128 or 256. Rows of x are aligned to 16 bytes, those of out to 8. A store of
//           out_transposed has 16 columns, as all sequences' columns begin and end at multiples of
//           16. With RoPE, rows do not come ahead, and their 4 M D bytes of FP32 take the next
//           block's place.
// Format    docs/fp8.md
#include <algorithm>
#include <cfloat>

#include "common/block_scale.hpp"
#include "cuda/common/copy_async.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/rotate_quantize/block.cuh"
#include "cuda/rotate_quantize/store.cuh"
#include "ops/rotate_quantize/params.hpp"

namespace tilewright::cuda {
namespace rotate_quantize {

// ---- Loading

__device__ inline uint4 bits_of(const float* x) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                    __float_as_uint(x[3]));
}

// A row's position; -1 if it is not in the tables.
__device__ std::int64_t position_of(const RotateQuantizeParams& p, const Block& block, int row) {
  const std::int64_t position =
      p.positions == nullptr
          ? block.rows.first + row
          : p.positions[block.entry * p.positions_batch_stride + block.first + row];
  return position >= 0 && position < p.max_positions ? position : -1;
}

// Where the first of a thread's vectors lies; the others lie at j XOR that.
template <typename P>
__device__ int first_vector(bool is_rotated) {
  return static_cast<int>(threadIdx.x) ^ (is_rotated ? P::swap(P::lane(threadIdx.x)) / kVector : 0);
}

// Asks for a warp's rows of a block. Those that there are not are zeros.
template <typename T, typename W, typename Storage>
__device__ void fetch(const RotateQuantizeParams& p, const Block& block, Storage& shared) {
  const auto* row = static_cast<const T*>(p.x) +
                    p.x_stride.offset(block.entry, block.first + W::row(), block.head) + W::dim();
  const std::int64_t step = W::kRowStep * p.x_stride.seq;
  const int rows = block.rows.count - W::row();
#pragma unroll
  for (int i = 0; i < kThreadVectors; ++i, row += step) {
    const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared.place(i)));
    copy_async<16>(target, row, i * W::kRowStep < rows);
  }
}

// Takes what fetch() has asked for, with the signs of the rotation.
template <typename T, typename P, typename Storage>
__device__ void take(const Storage& shared, bool is_rotated, P& part) {
  const int first = first_vector<P>(is_rotated);
  wait_for_copies();
  __syncwarp();  // other lanes' copies are there, too
  uint4 raw[kThreadVectors];
#pragma unroll
  for (int j = 0; j < kThreadVectors; ++j) {
    raw[j] = shared.next[threadIdx.x][(j ^ first) % kThreadVectors];
  }
  if (is_rotated) {
#pragma unroll
    for (int j = 0; j < kThreadVectors; ++j) {
      const uint4 signs = shared.signs[P::lane(threadIdx.x)][j];
      raw[j] = make_uint4(raw[j].x ^ signs.x, raw[j].y ^ signs.y, raw[j].z ^ signs.z,
                          raw[j].w ^ signs.w);
    }
  }
#pragma unroll
  for (int j = 0; j < kThreadVectors; ++j) {
    const Float8 values = load_eight(reinterpret_cast<const T*>(&raw[j]));
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      part.x[kVector * j + k] = values.value[k];
    }
  }
  __syncwarp();  // the place is free
}

// Takes a block with RoPE, with the signs of the rotation. Rows that there are not, and those whose
// position is not in the tables, are zeros.
template <typename T, typename W, typename P, typename Storage>
__device__ void take_with_rope(const RotateQuantizeParams& p, const Block& block, Storage& shared,
                               P& part) {
#pragma unroll 1
  for (int i = 0; i < kThreadVectors; ++i) {
    const int row = W::row() + i * W::kRowStep;
    const std::int64_t position = row < block.rows.count ? position_of(p, block, row) : -1;
    const std::int64_t offset = p.x_stride.offset(block.entry, block.first + row, block.head);
    const SourceRow<T> source{static_cast<const T*>(p.x) + offset, p.rotary, p.rotary.dims,
                              position};
    const Float8 values = position >= 0 ? source.eight(W::dim()) : Float8{};
    uint4* const target = shared.place(i);
    target[0] = bits_of(&values.value[0]);
    target[kThreadVectors] = bits_of(&values.value[4]);
  }
  const int first = first_vector<P>(p.is_rotated);
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kThreadVectors; ++j) {
    const uint4 signs = shared.signs[P::lane(threadIdx.x)][j];
    const std::uint32_t words[] = {signs.x, signs.y, signs.z, signs.w};
    const uint4* const own = &shared.next[threadIdx.x][(j ^ first) % kThreadVectors];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 raw = own[half * kThreadVectors];
      float* const x = part.x + kVector * j + 4 * half;
      x[0] = __uint_as_float(raw.x ^ (words[2 * half] << 16 & 0x80000000u));
      x[1] = __uint_as_float(raw.y ^ (words[2 * half] & 0x80000000u));
      x[2] = __uint_as_float(raw.z ^ (words[2 * half + 1] << 16 & 0x80000000u));
      x[3] = __uint_as_float(raw.w ^ (words[2 * half + 1] & 0x80000000u));
    }
  }
  __syncwarp();  // the place is free
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
    const int lane = vector / kThreadVectors;
    const int swapped = vector ^ Part<kHeadDim>::swap(lane) / kVector;
    shared.signs[lane][swapped % kThreadVectors] =
        p.is_rotated ? make_uint4(sign_bits(p, dim), sign_bits(p, dim + 2), sign_bits(p, dim + 4),
                                  sign_bits(p, dim + 6))
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

// The same where of two lanes that are kPartner apart, the second has such values exchanged.
template <int kDistance, int kPartner, int kValues>
__device__ void butterflies_swapped(float (&x)[kValues]) {
  const float sign = (threadIdx.x & kPartner) == 0 ? 1.0f : -1.0f;
#pragma unroll
  for (int first = 0; first < kValues; ++first) {
    if ((first & kDistance) == 0) {
      const float a = x[first];
      const float b = x[first + kDistance];
      x[first] = __fmaf_rn(a, sign, b);
      x[first + kDistance] = __fmaf_rn(b, -sign, a);
    }
  }
}

// Butterflies over the values of two such lanes. Of values that are kDistance apart, a lane sends
// the second, which the other has as the first.
template <int kDistance, int kPartner, int kValues>
__device__ void butterflies_of_lanes(float (&x)[kValues]) {
#pragma unroll
  for (int first = 0; first < kValues; ++first) {
    if ((first & kDistance) == 0) {
      const float own = x[first];
      const float others = __shfl_xor_sync(0xffffffffu, x[first + kDistance], kPartner);
      x[first] = __fadd_rn(own, others);
      x[first + kDistance] = __fsub_rn(own, others);
    }
  }
}

// The butterflies. The factor that makes them a rotation comes in with the descale.
template <typename P>
__device__ void rotate(P& part) {
  butterflies<1>(part.x);
  butterflies<2>(part.x);
  butterflies<4>(part.x);
  butterflies<8>(part.x);
  if constexpr (P::kLanes == 1) {
    butterflies<16>(part.x);
  } else {
    butterflies_swapped<16, 1>(part.x);
  }
  if constexpr (P::kLanes <= 2) {
    butterflies<32>(part.x);
  } else {
    butterflies_swapped<32, 2>(part.x);
  }
  if constexpr (P::kLanes >= 2) {
    butterflies_of_lanes<16, 1>(part.x);  // dims 64 apart
  }
  if constexpr (P::kLanes >= 4) {
    butterflies_of_lanes<32, 2>(part.x);  // 128
  }
}

// ---- Descales

// The largest magnitude of a thread's values, or of those that are finite. A NaN has none.
template <bool kOfFinite, typename P>
__device__ float largest_of_thread(const P& part) {
  float largest = 0.0f;
#pragma unroll
  for (const float value : part.x) {
    const bool counts = !kOfFinite || fabsf(value) <= FLT_MAX;
    largest = fmaxf(largest, counts ? fabsf(value) : 0.0f);
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
  const float amax = __fmul_rn(largest_of_block(part, of_warps), p.rotation_factor);
  float descale = amax == 0.0f ? 1.0f : fmaxf(__fdiv_rn(amax, kE4m3Max), FLT_MIN);
  if (p.is_transposed) {
    descale = power_of_two_from(descale);
  }
  if (threadIdx.x == 0) {
    p.descale[p.descale_stride.offset(block.entry, block.index, block.head)] = descale;
  }
  return descale;
}

template <typename T, int kHeadDim, int kRows, bool kHasRope, bool kIsTransposed>
__global__ void __launch_bounds__(threads_of(kHeadDim, kRows), blocks_per_sm(kHeadDim, kRows))
    rotate_quantize(const __grid_constant__ RotateQuantizeParams p,
                    const __grid_constant__ BlockOrder order) {
  using W = Walk<kHeadDim>;
  extern __shared__ __align__(128) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<kHeadDim, kRows, kHasRope>*>(smem);
  const int step = static_cast<int>(gridDim.x);
  int number = static_cast<int>(blockIdx.x);
  Block next(p, order, number);
  if constexpr (!kHasRope) {
    fetch<T, W>(p, next, shared);
  }
  write_signs<kHeadDim>(p, shared);
  for (int parity = 0; number < order.count; number += step, parity ^= 1) {
    const Block block = next;
    const bool has_next = number + step < order.count;
    if (has_next) {
      next = Block(p, order, number + step);
    }
    Part<kHeadDim> part;
    if constexpr (kHasRope) {
      take_with_rope<T, W>(p, block, shared, part);
    } else {
      take<T>(shared, p.is_rotated, part);
      if (has_next) {
        fetch<T, W>(p, next, shared);
      }
    }
    if (p.is_rotated) {
      rotate(part);
    }
    const float descale = descale_of(p, block, part, shared.largest[parity]);
    const float factor = __fmul_rn(p.rotation_factor, __fdiv_rn(1.0f, descale));
    if constexpr (kIsTransposed) {
      store_transposed(p, block, part, factor, shared.tile);
      if (block.index == order.blocks - 1) {
        clear_columns(p, block);
      }
    } else {
      store_rows<W>(p, block, part, factor, shared.tile);
    }
  }
}

template <typename T, int kRows, bool kHasRope, bool kIsTransposed>
void launch_form(const RotateQuantizeParams& p, Stream stream) {
  const bool is_packed = p.blocks.cu_seqlens != nullptr;
  const int blocks = p.blocks.count();
  const BlockOrder order{.heads = Divisor(p.heads),
                         .blocks = Divisor(blocks),
                         .count = blocks * p.heads * (is_packed ? 1 : p.blocks.batch)};
  dispatch_head_dim<64, 128, 256>(p.head_dim, [&]<int kHeadDim>() {
    const int resident = p.multiprocessors * blocks_per_sm(kHeadDim, kRows);
    launch<rotate_quantize<T, kHeadDim, kRows, kHasRope, kIsTransposed>>(
        std::min(order.count, resident), threads_of(kHeadDim, kRows),
        sizeof(SharedStorage<kHeadDim, kRows, kHasRope>), stream, p, order);
  });
}

template <typename T, int kRows, bool kHasRope>
void launch_rows(const RotateQuantizeParams& p, Stream stream) {
  if (p.is_transposed) {
    launch_form<T, kRows, kHasRope, true>(p, stream);
  } else {
    launch_form<T, kRows, kHasRope, false>(p, stream);
  }
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
