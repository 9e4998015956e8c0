// rope: a group of up to 32 threads takes one head of a row.
//
//   position of the row; a row without one ends here
//   for each item of the head: load 16 or 32 bytes | rotate | store
//
// Source    tilewright/rope.hpp has the arithmetic, cuda/common/rotation.cuh does it.
// Tiles     An item is either eight pairs of rotated dims, two vectors of 16 bytes, or one vector
// of
//           others, which is copied; where out is x, there are only the former. Pairs of neighbours
//           lie in neighbouring vectors, pairs half of the rotated dims apart in vectors as far
//           apart: a thread has both of a pair, so that out may be x. A group has as many threads
//           as a head has items, up to a power of two, so that a warp takes eight heads of
//           DeepSeek-V4 in place. Groups are numbered along heads first: the heads of a row find
//           its angles in the L1 cache.
// SMEM      none.
// Registers as many as the compiler takes.
// Limits    D is a multiple of 8, R of 16; x and out are aligned to 16 bytes, row by row. A row at
//           no position of the tables is left out.
#include <algorithm>
#include <bit>

#include "common/ceil_div.hpp"
#include "cuda/common/eight_values.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/rotation.cuh"
#include "ops/rope/kernels.hpp"

namespace tilewright::cuda {
namespace rope {

constexpr int kThreads = 256;
constexpr int kMaxLanes = 32;
constexpr int kVector = 8;  // elements
constexpr int kPairs = 8;   // of an item

// Rotates an item of a head's rotated dims: the pairs whose elements lie in two vectors, from `low`
// and `high` on.
template <bool kIsInterleaved, typename T>
__device__ void rotate_item(const Rotary& rotary, std::int64_t position, int item, const T* x,
                            T* out) {
  const int low = item * (kIsInterleaved ? 2 * kVector : kVector);
  const int high = low + (kIsInterleaved ? kVector : rotary.dims / 2);
  const Float8 first = load_eight(x + low);
  const Float8 second = load_eight(x + high);
  const auto angles = Angles<kPairs>::template load<T>(rotary, position, item * kPairs);
  Float8 results[2];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float sin = rotary.is_inverse ? -angles.sin[i] : angles.sin[i];
    if constexpr (kIsInterleaved) {
      const Float8& source = i < kPairs / 2 ? first : second;
      const int dim = 2 * i % kVector;
      const float x1 = source.value[dim];
      const float x2 = source.value[dim + 1];
      results[2 * i / kVector].value[dim] = rotated_first(x1, x2, angles.cos[i], sin);
      results[2 * i / kVector].value[dim + 1] = rotated_second(x1, x2, angles.cos[i], sin);
    } else {
      results[0].value[i] = rotated_first(first.value[i], second.value[i], angles.cos[i], sin);
      results[1].value[i] = rotated_second(first.value[i], second.value[i], angles.cos[i], sin);
    }
  }
  store_eight(results[0], out + low);
  store_eight(results[1], out + high);
}

// Behind a head's rotated items come the vectors that are copied.
constexpr int rotated_items(const Rotary& rotary) { return rotary.dims / (2 * kPairs); }

template <bool kIsInterleaved, typename T>
__global__ void __launch_bounds__(kThreads)
    rotate(const __grid_constant__ RopeParams p, const __grid_constant__ Divisor heads, int items,
           int log2_lanes) {
  const std::int64_t index = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) >> log2_lanes;
  if (index >= std::int64_t{p.rows} * heads) {
    return;
  }
  const int row = static_cast<int>(index) / heads;
  const int head = static_cast<int>(index) - row * heads;
  if (!p.has_position(row)) {
    return;
  }
  const int lanes = 1 << log2_lanes;
  const T* const x = static_cast<const T*>(p.x) + p.x_stride.offset(0, row, head);
  T* const out = static_cast<T*>(p.out) + p.out_stride.offset(0, row, head);
  for (int item = static_cast<int>(threadIdx.x) % lanes; item < items; item += lanes) {
    if (item < rotated_items(p.rotary)) {
      rotate_item<kIsInterleaved>(p.rotary, p.positions[row], item, x + p.first_rotated,
                                  out + p.first_rotated);
    } else {
      const int copied = (item - rotated_items(p.rotary)) * kVector;
      const int dim = copied < p.first_rotated ? copied : copied + p.rotary.dims;
      *reinterpret_cast<uint4*>(out + dim) = *reinterpret_cast<const uint4*>(x + dim);
    }
  }
}

template <typename T>
void launch_rotate(const RopeParams& p, Stream stream) {
  const int copied = p.is_in_place() ? 0 : (p.head_dim - p.rotary.dims) / kVector;
  const int items = rotated_items(p.rotary) + copied;
  const int log2_lanes = std::bit_width(static_cast<unsigned>(std::min(items, kMaxLanes)) - 1);
  const std::int64_t threads = std::int64_t{p.rows} * p.heads << log2_lanes;
  const auto grid = static_cast<unsigned>(ceil_div(threads, kThreads));
  if (p.rotary.is_interleaved) {
    launch<rotate<true, T>>(grid, kThreads, 0, stream, p, Divisor(p.heads), items, log2_lanes);
  } else {
    launch<rotate<false, T>>(grid, kThreads, 0, stream, p, Divisor(p.heads), items, log2_lanes);
  }
}

}  // namespace rope

void launch_rope(const RopeParams& p, Stream stream) {
  if (p.dtype == DType::fp16) {
    rope::launch_rotate<__half>(p, stream);
  } else {
    rope::launch_rotate<__nv_bfloat16>(p, stream);
  }
}

}  // namespace tilewright::cuda
