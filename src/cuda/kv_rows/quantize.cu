// quantize_kv_rows: a warp takes a row of 512 values, a lane sixteen of them.
//
//   load 32 bytes (of FP32 64), and the row's slot | largest |x| of the lane, of its group
//   slot --> place; a row without one ends here
//   codes   largest |x| --> scale --> codes, store 16 bytes (of E2M1 8)
//   BF16    round if x is FP32, store 32 bytes
//
// Source    tilewright/kv_rows.hpp has the arithmetic, common/kv_row.hpp the scales and places.
// Tiles     A warp reads 1,024 neighbouring bytes (of FP32 2,048) and writes a row's data, 256 to
//           1,024 bytes, in whole sectors; its scales are 8 to 32 neighbouring bytes. Groups are
//           16, 32 or 64 values: 1, 2 or 4 lanes, which find their maximum by shuffles. Of
//           e4m3_bf16 the last four lanes have the BF16.
// SMEM      none.
// Registers 32 at most for BF16, so that all 64 warps of an SM have their loads under way; 40 for
//           FP32.
// Limits    x, pages and rows are aligned to 16 bytes. Places are computed in 64 bits.
#include <cuda_fp8.h>

#include "common/ceil_div.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/value_block.cuh"
#include "ops/kv_rows/kernels.hpp"

namespace tilewright::cuda {
namespace quantize_kv_rows {

constexpr int kThreads = 128;
constexpr int kWarpLanes = 32;
constexpr int kValues = kKvRowDims / kWarpLanes;  // of a lane
static_assert(kValues == nvfp4::kBlock);

// How a row's values lie in the lanes.
template <KvRowFormat kFormat>
struct LanesOf {
  static constexpr KvRowParts kParts = parts_of(kFormat);
  static constexpr int kCoded = kParts.coded_dims / kValues;  // lanes; the others have BF16
  static constexpr int kGroup = kCoded > 0 ? kParts.group / kValues : 1;  // that share a group
};

// The bits of the largest magnitude of a lane's group, in all of its lanes; 0 without groups.
template <KvRowFormat kFormat, typename T>
__device__ std::uint32_t group_amax_bits(const ValueBlock<T>& block) {
  using Lanes = LanesOf<kFormat>;
  if constexpr (Lanes::kCoded == 0) {
    return 0;
  }
  std::uint32_t largest = amax_bits(block);
#pragma unroll
  for (int step = Lanes::kGroup / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  return largest;
}

// Four codes in a word, the first in the lowest byte.
template <typename T>
__device__ std::uint32_t four_e4m3(const ValueBlock<T>& block, int first, float inverse) {
  const auto pair = [&](int i) -> std::uint32_t {
    return __nv_cvt_float2_to_fp8x2(
        make_float2(value(block, i) * inverse, value(block, i + 1) * inverse), __NV_SATFINITE,
        __NV_E4M3);
  };
  return pair(first) | pair(first + 2) << 16;
}

template <typename T>
__device__ void store_e4m3(const ValueBlock<T>& block, std::uint32_t scale, std::uint8_t* codes) {
  const float inverse = inverse_of_e8m0_scale(scale);
  *reinterpret_cast<uint4*>(codes) =
      make_uint4(four_e4m3(block, 0, inverse), four_e4m3(block, 4, inverse),
                 four_e4m3(block, 8, inverse), four_e4m3(block, 12, inverse));
}

// Returns the scale.
template <typename T>
__device__ std::uint8_t store_e2m1(const ValueBlock<T>& block, std::uint32_t amax,
                                   std::uint8_t* codes) {
  constexpr std::uint8_t kLeastNormal = 0x08;  // of E4M3
  constexpr std::uint8_t kLargest = 0x7e;
  const std::uint8_t scale = __nv_cvt_float_to_fp8(nvfp4::exact_scale(__uint_as_float(amax), 1.0f),
                                                   __NV_SATFINITE, __NV_E4M3);
  const float m = nvfp4::code_factor(scale, 1.0f);
  // A normal scale that has not saturated is off by a sixteenth at most, so that amax * m is at
  // most 6 * 17 / 16.
  if (scale >= kLeastNormal && scale < kLargest) {
    *reinterpret_cast<uint2*>(codes) =
        make_uint2(eight_codes<true>(block, 0, m), eight_codes<true>(block, 8, m));
  } else {
    *reinterpret_cast<uint2*>(codes) =
        make_uint2(eight_codes(block, 0, m), eight_codes(block, 8, m));
  }
  return scale;
}

__device__ void store_bf16(const ValueBlock<__nv_bfloat16>& block, std::uint8_t* out) {
  reinterpret_cast<uint4*>(out)[0] = block.vectors[0];
  reinterpret_cast<uint4*>(out)[1] = block.vectors[1];
}

__device__ void store_bf16(const ValueBlock<float>& block, std::uint8_t* out) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto pair = [&](int i) {
      return pack_bf16x2(value(block, 8 * half + i), value(block, 8 * half + i + 1));
    };
    reinterpret_cast<uint4*>(out)[half] = make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
}

// Stores a lane's values and, of a group's first lane, its scale.
template <KvRowFormat kFormat, typename T>
__device__ void store_lane(const ValueBlock<T>& block, std::uint32_t amax, int lane,
                           std::uint8_t* data, std::uint8_t* scales) {
  using Lanes = LanesOf<kFormat>;
  constexpr KvRowParts kParts = Lanes::kParts;
  if (lane >= Lanes::kCoded) {
    constexpr int kBytes = kValues * static_cast<int>(sizeof(__nv_bfloat16));
    store_bf16(block, data + kParts.code_bytes() + (lane - Lanes::kCoded) * kBytes);
    if (lane == Lanes::kCoded && kParts.scales() < kParts.scales_bytes) {
      scales[kParts.scales()] = 0;
    }
    return;
  }
  std::uint8_t* const codes = data + lane * (kValues * kParts.code_bits / 8);
  std::uint32_t scale = 0;
  if constexpr (kFormat == KvRowFormat::e2m1) {
    scale = store_e2m1(block, amax, codes);
  } else {
    scale = e8m0_scale_of(__uint_as_float(amax));
    store_e4m3(block, scale, codes);
  }
  if (lane % Lanes::kGroup == 0) {
    scales[lane / Lanes::kGroup] = static_cast<std::uint8_t>(scale);
  }
}

template <KvRowFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    quantize(const __grid_constant__ QuantizeKvRowsParams p) {
  const int row = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / kWarpLanes);
  if (row >= p.rows) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const ValueBlock<T> block =
      load_values(static_cast<const T*>(p.x) + row * p.x_stride + lane * kValues);
  const std::int64_t slot = p.slots[row];
  // Ahead of the branch, so that both loads are under way at once: shuffles do not move behind it.
  const std::uint32_t amax = group_amax_bits<kFormat>(block);
  if (!p.layout.has(slot)) {
    return;
  }
  const KvRowPlace place = p.layout.place(slot);
  store_lane<kFormat>(block, amax, lane, p.cache + place.data, p.cache + place.scales);
}

template <typename T>
void launch_format(const QuantizeKvRowsParams& p, Stream stream) {
  const auto grid = static_cast<unsigned>(ceil_div(p.rows, kThreads / kWarpLanes));
  switch (p.layout.format) {
    case KvRowFormat::bf16:
      return launch<quantize<KvRowFormat::bf16, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e4m3_bf16:
      return launch<quantize<KvRowFormat::e4m3_bf16, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e4m3:
      return launch<quantize<KvRowFormat::e4m3, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e2m1:
      return launch<quantize<KvRowFormat::e2m1, T>>(grid, kThreads, 0, stream, p);
  }
}

}  // namespace quantize_kv_rows

void launch_quantize_kv_rows(const QuantizeKvRowsParams& p, Stream stream) {
  if (p.dtype == DType::fp32) {
    quantize_kv_rows::launch_format<float>(p, stream);
  } else {
    quantize_kv_rows::launch_format<__nv_bfloat16>(p, stream);
  }
}

}  // namespace tilewright::cuda
