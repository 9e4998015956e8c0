// dequantize_kv_rows: a warp takes a row of 512 values, a lane sixteen of them.
//
//   slot --> place; a row without one ends here
//   load 16 bytes of codes (of E2M1 8) and a scale | value = code * scale, rounded to FP32 | store
//   load 32 bytes of BF16                          | copied, or widened                    | store
//
// Source    tilewright/kv_rows.hpp has the arithmetic, common/kv_row.hpp the places.
// Tiles     A warp reads a row's data, 256 to 1,024 bytes, in whole sectors, and writes 1,024
//           neighbouring bytes (of FP32 2,048). The lanes of a group read the same scale. Of
//           e4m3_bf16 the last four lanes have the BF16.
// SMEM      none.
// Registers as many as the compiler takes.
// Limits    out, pages and rows are aligned to 16 bytes. Places are computed in 64 bits.
#include <cuda_fp8.h>

#include "common/ceil_div.hpp"
#include "cuda/common/eight_values.cuh"
#include "cuda/common/launch.cuh"
#include "ops/kv_rows/kernels.hpp"

namespace tilewright::cuda {
namespace dequantize_kv_rows {

constexpr int kThreads = 128;
constexpr int kWarpLanes = 32;
constexpr int kValues = kKvRowDims / kWarpLanes;  // of a lane
constexpr int kVector = 8;                        // values that are stored at a time

// Eight values of E4M3 codes, or of E2M1 codes, the first in the lowest bits.
__device__ Float8 decode(uint2 codes, float scale) {
  const std::uint32_t words[2] = {codes.x, codes.y};
  Float8 values;
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> 8 * (i % 4));
    const __half2 halves(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
    values.value[i] = decoded(__low2float(halves), scale);
    values.value[i + 1] = decoded(__high2float(halves), scale);
  }
  return values;
}

__device__ Float8 decode(std::uint32_t codes, float scale) {
  Float8 values;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values.value[i] = decoded(e2m1_to_float(codes >> 4 * i), scale);
  }
  return values;
}

__device__ void copy_eight(const __nv_bfloat16* source, __nv_bfloat16* target) {
  *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
}

__device__ void copy_eight(const __nv_bfloat16* source, float* target) {
  store_eight(load_eight(source), target);
}

template <KvRowFormat kFormat, typename T>
__device__ void load_lane(const std::uint8_t* data, const std::uint8_t* scales, int lane, T* out) {
  constexpr KvRowParts kParts = parts_of(kFormat);
  constexpr int kCodedLanes = kParts.coded_dims / kValues;
  if (lane >= kCodedLanes) {
    const auto* const source = reinterpret_cast<const __nv_bfloat16*>(data + kParts.code_bytes()) +
                               (lane - kCodedLanes) * kValues;
    copy_eight(source, out);
    copy_eight(source + kVector, out + kVector);
    return;
  }
  const std::uint8_t* const codes = data + lane * (kValues * kParts.code_bits / 8);
  const std::uint32_t scale = scales[lane * kValues / kParts.group];
  if constexpr (kFormat == KvRowFormat::e2m1) {
    const uint2 words = *reinterpret_cast<const uint2*>(codes);
    store_eight(decode(words.x, e4m3_to_float(scale)), out);
    store_eight(decode(words.y, e4m3_to_float(scale)), out + kVector);
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(codes);
    store_eight(decode(make_uint2(words.x, words.y), e8m0_to_float(scale)), out);
    store_eight(decode(make_uint2(words.z, words.w), e8m0_to_float(scale)), out + kVector);
  }
}

template <KvRowFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize(const __grid_constant__ DequantizeKvRowsParams p) {
  const int row = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / kWarpLanes);
  if (row >= p.rows || !p.layout.has(p.slots[row])) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const KvRowPlace place = p.layout.place(p.slots[row]);
  load_lane<kFormat>(p.cache + place.data, p.cache + place.scales, lane,
                     static_cast<T*>(p.out) + row * p.out_stride + lane * kValues);
}

template <typename T>
void launch_format(const DequantizeKvRowsParams& p, Stream stream) {
  const auto grid = static_cast<unsigned>(ceil_div(p.rows, kThreads / kWarpLanes));
  switch (p.layout.format) {
    case KvRowFormat::bf16:
      return launch<dequantize<KvRowFormat::bf16, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e4m3_bf16:
      return launch<dequantize<KvRowFormat::e4m3_bf16, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e4m3:
      return launch<dequantize<KvRowFormat::e4m3, T>>(grid, kThreads, 0, stream, p);
    case KvRowFormat::e2m1:
      return launch<dequantize<KvRowFormat::e2m1, T>>(grid, kThreads, 0, stream, p);
  }
}

}  // namespace dequantize_kv_rows

void launch_dequantize_kv_rows(const DequantizeKvRowsParams& p, Stream stream) {
  if (p.dtype == DType::fp32) {
    dequantize_kv_rows::launch_format<float>(p, stream);
  } else {
    dequantize_kv_rows::launch_format<__nv_bfloat16>(p, stream);
  }
}

}  // namespace tilewright::cuda
