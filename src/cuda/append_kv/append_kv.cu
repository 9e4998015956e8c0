// append_kv: a group of up to 32 threads takes one head of a row of k, v or q.
//
//   place of the row: its slot, or its sequence, position and page
//   for each vector: load, rotate | largest magnitude --> descale      only if it is computed
//   for each vector: load, rotate | to the cache's type | store
//
// Source    tilewright/append_kv.hpp has the arithmetic, common/append_rows.hpp the places.
// Tiles     A thread takes 8 elements at a time, a vector of 16 bytes, of which an e4m3 cache gets
//           8. A group has as many threads as a row has vectors, up to a power of two, so that a
//           warp of two groups reads 512 neighbouring bytes of bf16 at a head dim of 128. Groups
//           are numbered along the heads of k, of v and of q first, then along rows.
// Rotation  cuda/common/source_row.cuh
// SMEM      none. A descale is found by shuffles in its group; the row is then read again, from L1.
// Registers as many as the compiler takes.
// Limits    D and Dv are multiples of 8; rows are aligned to 16 bytes, those of e4m3 to 8. A row
//           whose place is not in the cache is left out: nothing beside the tensors is touched.
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cfloat>

#include "common/block_scale.hpp"
#include "common/ceil_div.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/source_row.cuh"
#include "ops/append_kv/params.hpp"

namespace tilewright::cuda {
namespace append_kv {

constexpr int kThreads = 256;
constexpr int kMaxLanes = 32;

// Neighbouring threads of a warp that work on one row.
struct Group {
  int lane;
  int lanes;  // a power of two

  __device__ unsigned mask() const {
    const unsigned all = 0xffffffffu >> (kMaxLanes - lanes);
    return all << (threadIdx.x % kMaxLanes - lane);
  }

  // The maximum over the group, in all of its threads.
  __device__ std::uint32_t max_of(std::uint32_t value) const {
    for (int step = lanes / 2; step > 0; step /= 2) {
      value = max(value, __shfl_xor_sync(mask(), value, step));
    }
    return value;
  }
};

// ---- Storing

// What is not rotated is copied bit for bit. The number of rotated elements is even: a word of two
// is rotated or not.
template <typename T>
__device__ void store_row(const SourceRow<T>& row, int dims, T* out, Group group) {
  for (int first = kVector * group.lane; first < dims; first += kVector * group.lanes) {
    uint4 words = *reinterpret_cast<const uint4*>(row.x + first);
    const int rotated_dims = row.rotary_dims - first;
    if (rotated_dims > 0) {
      const uint4 rotated = pack_eight(row.eight(first), out);
      words.x = rotated.x;
      words.y = rotated_dims > 2 ? rotated.y : words.y;
      words.z = rotated_dims > 4 ? rotated.z : words.z;
      words.w = rotated_dims > 6 ? rotated.w : words.w;
    }
    *reinterpret_cast<uint4*>(out + first) = words;
  }
}

template <typename T>
__device__ float computed_descale(const SourceRow<T>& row, int dims, Group group) {
  constexpr std::uint32_t kMagnitude = 0x7fffffffu;
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  std::uint32_t largest = 0;
  for (int first = kVector * group.lane; first < dims; first += kVector * group.lanes) {
    const Float8 values = row.eight(first);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const std::uint32_t magnitude = __float_as_uint(values.value[i]) & kMagnitude;
      largest = max(largest, magnitude < kInfinity ? magnitude : 0u);
    }
  }
  const float amax = __uint_as_float(group.max_of(largest));
  return amax == 0.0f ? 1.0f : fmaxf(__fdiv_rn(amax, kE4m3Max), FLT_MIN);
}

// Four values as bytes of e4m3, the first in the lowest.
__device__ std::uint32_t four_e4m3(const float* values, float descale) {
  const auto pair = [&](int i) -> std::uint32_t {
    return __nv_cvt_float2_to_fp8x2(
        make_float2(__fdiv_rn(values[i], descale), __fdiv_rn(values[i + 1], descale)),
        __NV_SATFINITE, __NV_E4M3);
  };
  return pair(0) | pair(2) << 16;
}

template <typename T>
__device__ void quantize_row(const SourceRow<T>& row, int dims, float descale, std::uint8_t* out,
                             Group group) {
  for (int first = kVector * group.lane; first < dims; first += kVector * group.lanes) {
    const Float8 values = row.eight(first);
    *reinterpret_cast<uint2*>(out + first) =
        make_uint2(four_e4m3(values.value, descale), four_e4m3(values.value + 4, descale));
  }
}

// Writes a head of a row of k or v into its cache.
template <bool kIsQuantized, typename T>
__device__ void append_row(const SourceRow<T>& row, int dims, const RowPlace& place, int head,
                           const AppendDescales& descales, void* cache, const OuterStrides& stride,
                           Group group) {
  const std::int64_t offset = stride.offset(place.page, place.in_page, head);
  if constexpr (!kIsQuantized) {
    store_row(row, dims, static_cast<T*>(cache) + offset, group);
  } else {
    float descale = 0.0f;
    if (descales.computed != nullptr) {
      descale = computed_descale(row, dims, group);
      if (group.lane == 0) {
        descales.computed[descales.computed_stride.offset(place.page, place.in_page, head)] =
            descale;
      }
    } else {
      descale = descales.given[max(place.sequence, 0) * descales.sequence_stride +
                               head * descales.head_stride];
    }
    quantize_row(row, dims, descale, static_cast<std::uint8_t*>(cache) + offset, group);
  }
}

// `units` are the heads of k, v and q of a row.
template <typename T, bool kIsQuantized>
__global__ void __launch_bounds__(kThreads)
    append(const __grid_constant__ AppendKvParams p, const __grid_constant__ Divisor units,
           int log2_lanes) {
  const std::int64_t index = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) >> log2_lanes;
  if (index >= std::int64_t{p.rows.count} * units) {
    return;
  }
  const int lanes = 1 << log2_lanes;
  const Group group{.lane = static_cast<int>(threadIdx.x) % lanes, .lanes = lanes};
  const int row_index = static_cast<int>(index) / units;
  const int unit = static_cast<int>(index) - row_index * units;
  const int batch = row_index / p.rows.per_batch;
  const int token = row_index - batch * p.rows.per_batch;
  const RowPlace place = p.rows.place_of(row_index);
  const auto row = [&](const void* rows, const OuterStrides& stride, int head, int rotary_dims) {
    return SourceRow<T>{static_cast<const T*>(rows) + stride.offset(batch, token, head), p.rotary,
                        rotary_dims, place.position};
  };
  if (unit >= 2 * p.kv_heads) {
    const int head = unit - 2 * p.kv_heads;
    if (place.position >= 0) {
      store_row(row(p.q, p.q_stride, head, p.rotary.dims), p.head_dim,
                static_cast<T*>(p.q_out) + p.q_out_stride.offset(batch, token, head), group);
    }
  } else if (place.page >= 0 && unit < p.kv_heads) {
    append_row<kIsQuantized>(row(p.k, p.k_stride, unit, p.rotary.dims), p.head_dim, place, unit,
                             p.k_descale, p.k_cache, p.k_cache_stride, group);
  } else if (place.page >= 0) {
    const int head = unit - p.kv_heads;
    append_row<kIsQuantized>(row(p.v, p.v_stride, head, 0), p.value_dim, place, head, p.v_descale,
                             p.v_cache, p.v_cache_stride, group);
  }
}

template <typename T>
void launch_append(const AppendKvParams& p, Stream stream) {
  const auto vectors = static_cast<unsigned>(std::max(p.head_dim, p.value_dim) / kVector);
  const int log2_lanes = std::bit_width(std::min<unsigned>(vectors, kMaxLanes) - 1);
  const int units = 2 * p.kv_heads + p.heads;
  const std::int64_t threads = std::int64_t{p.rows.count} * units << log2_lanes;
  const auto grid = static_cast<unsigned>(ceil_div(threads, kThreads));
  if (p.is_quantized) {
    launch<append<T, true>>(grid, kThreads, 0, stream, p, Divisor(units), log2_lanes);
  } else {
    launch<append<T, false>>(grid, kThreads, 0, stream, p, Divisor(units), log2_lanes);
  }
}

}  // namespace append_kv

void launch_append_kv(const AppendKvParams& p, Stream stream) {
  if (p.dtype == DType::fp16) {
    append_kv::launch_append<__half>(p, stream);
  } else {
    append_kv::launch_append<__nv_bfloat16>(p, stream);
  }
}

}  // namespace tilewright::cuda
