// quantize_nvfp4: a thread takes a block of 16 values. g is the global scale, e the same scale as a
// number that values are multiplied by, and m the number by which a block's values become codes.
//
//   amax      the largest finite |x| of each thread block, a partial maximum; runs only if the
//             global scale g is not given
//   quantize  computes the encode scale e from g or from the partial maxima, then block scales and
//             codes
//
//   quantize:   compute e; for each possible scale, its factor m -> factors[128] in SMEM
//               load a batch of blocks | for each: largest |x| -> scale -> m -> codes, store
//
// Source    tilewright/nvfp4.hpp has the arithmetic; E2M1's rounding is that of common/e2m1.hpp.
// Tiles     block_tiles.cuh: a warp reads 32 neighbouring blocks, each in whole sectors of 32 bytes
//           (of FP32 64); it writes 256 bytes of codes and 32 scales. If scales are swizzled, it
//           takes 8 blocks in each of 4 rows, 32 apart: their scales lie beside each other.
//           A thread loads a batch of blocks at once: one block in each of two of its rows or, in
//           FP32, in one row. If scales are swizzled, a thread's rows are a multiple of 128 apart.
//           So its scales lie equal steps apart in either layout.
// Order     `amax` goes from the first row to the last, `quantize` from the last row to the first:
//           what `quantize` reads first, `amax` has read last, so it is still in the L2 cache. The
//           thread blocks of `quantize` start on SMs where blocks of `amax` have ended, and wait
//           until all of `amax` has ended (programmatic dependent launch).
// SMEM      quantize: 128 factors, as a block's m depends on its scale alone.
// Registers 256 threads, 6 thread blocks an SM: at most 40. For FP32, 5 thread blocks and 48.
// Maximum   `amax` compares the bits of |x| as unsigned integers. Each thread block writes its own
//           partial maximum, so that there are no atomics and no memory has to be cleared.
// Limits    Each row of x is aligned to 16 bytes, each row of codes to 8.
#include <cuda_fp8.h>

#include "common/nvfp4_recipe.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/value_block.cuh"
#include "cuda/conversions/block_tiles.cuh"
#include "ops/quantize_nvfp4/params.hpp"

namespace tilewright::cuda {
namespace quantize_nvfp4 {

using nvfp4::kBlock;
using nvfp4::kInfinity;
using nvfp4::kMagnitude;

constexpr int kWarps = kBlockThreads / 32;
constexpr int kScaleCodes = 128;  // without a sign

// Thread blocks that an SM holds at once: FP32 needs more registers.
template <typename T>
constexpr int kBlocksPerSm = sizeof(T) == 4 ? 5 : 6;

// How many blocks a thread loads together.
template <typename T>
constexpr int kBatch = 4 / sizeof(T);

template <typename T>
__device__ ValueBlock<T> load_block(const QuantizeNvfp4Params& p, int row, int column) {
  return load_values(static_cast<const T*>(p.x) + row * p.x_stride + std::int64_t{column} * kBlock);
}

// The same over finite values, 0 where there are none.
template <typename T>
__device__ std::uint32_t finite_amax_bits(const ValueBlock<T>& block) {
  std::uint32_t largest = amax_bits(block);
  if (largest >= kInfinity) {  // rare
    largest = 0;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const std::uint32_t magnitude = __float_as_uint(value(block, i)) & kMagnitude;
      largest = max(largest, magnitude < kInfinity ? magnitude : 0u);
    }
  }
  return largest;
}

// The maximum over the thread block, in all of its threads.
__device__ std::uint32_t block_max(std::uint32_t value) {
  __shared__ std::uint32_t of_warp[kWarps];
  const std::uint32_t warp_max = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = warp_max;
  }
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    largest = max(largest, of_warp[warp]);
  }
  return largest;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<T>)
    amax(const __grid_constant__ QuantizeNvfp4Params p, int log2_lanes) {
  let_next_launch_start();
  const BlockPosition first(log2_lanes);
  std::uint32_t largest = 0;
  for (int column = first.column; column < p.blocks; column += first.column_step) {
    for (int row = first.row; row < p.rows; row += kBatch<T> * first.row_step) {
      ValueBlock<T> batch[kBatch<T>] = {};
#pragma unroll
      for (int i = 0; i < kBatch<T>; ++i) {
        if (row + i * first.row_step < p.rows) {
          batch[i] = load_block<T>(p, row + i * first.row_step, column);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch<T>; ++i) {
        largest = max(largest, finite_amax_bits(batch[i]));
      }
    }
  }
  largest = block_max(largest);
  if (threadIdx.x == 0) {
    p.workspace[blockIdx.y * gridDim.x + blockIdx.x] = largest;
  }
}

// g, as given or from the partial maxima.
__device__ float global_scale_of(const QuantizeNvfp4Params& p, int partials) {
  if (p.global_scale != nullptr) {
    return *p.global_scale;
  }
  std::uint32_t largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < partials; i += kBlockThreads) {
    largest = max(largest, p.workspace[i]);
  }
  const float amax = __uint_as_float(block_max(largest));
  const float global_scale = nvfp4::global_scale_of(amax, p.global_scale_kind);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    *p.computed_global_scale = global_scale;
  }
  return global_scale;
}

// Writes the codes of a block and returns its scale.
template <typename T>
__device__ std::uint8_t quantize_block(const QuantizeNvfp4Params& p, const ValueBlock<T>& block,
                                       int row, int column, float e, const float* factors) {
  const float block_amax = __uint_as_float(amax_bits(block));
  const std::uint8_t scale =
      __nv_cvt_float_to_fp8(nvfp4::exact_scale(block_amax, e), __NV_SATFINITE, __NV_E4M3);
  const float m = factors[scale % kScaleCodes];
  std::uint8_t* const codes = p.codes + row * p.codes_stride + std::int64_t{column} * (kBlock / 2);
  *reinterpret_cast<uint2*>(codes) = make_uint2(eight_codes(block, 0, m), eight_codes(block, 8, m));
  return scale;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm<T>)
    quantize(const __grid_constant__ QuantizeNvfp4Params p, int log2_lanes, int partials) {
  __shared__ float factors[kScaleCodes];
  wait_for_launch_before();  // for the partial maxima
  const float e = nvfp4::encode_scale(global_scale_of(p, partials), p.global_scale_kind);
  if (threadIdx.x < kScaleCodes) {
    factors[threadIdx.x] = nvfp4::code_factor(threadIdx.x, e);
  }
  __syncthreads();

  const BlockPosition first(log2_lanes);
  const std::int64_t scale_step = p.scales.offset_of_rows(first.row_step);
  const int first_row =
      p.scales.layout == ScaleLayout::linear ? first.row : row_in_scale_order(first.row);
  for (int column = first.column; column < p.scale_blocks; column += first.column_step) {
    int last = p.scale_rows - 1 - first_row;  // of the batch's rows; may be padding
    std::uint8_t* scale = &p.scales.at(std::max(last, 0), column);
    for (; last >= 0; last -= kBatch<T> * first.row_step, scale -= kBatch<T> * scale_step) {
      const auto row = [&](int i) { return last - i * first.row_step; };
      const auto is_block = [&](int i) {
        return row(i) >= 0 && row(i) < p.rows && column < p.blocks;
      };
      ValueBlock<T> batch[kBatch<T>] = {};
#pragma unroll
      for (int i = 0; i < kBatch<T>; ++i) {
        if (is_block(i)) {
          batch[i] = load_block<T>(p, row(i), column);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch<T>; ++i) {
        if (row(i) >= 0) {
          scale[-i * scale_step] =
              is_block(i) ? quantize_block(p, batch[i], row(i), column, e, factors) : 0;
        }
      }
    }
  }
}

template <typename T>
void launch_both(const QuantizeNvfp4Params& p, Stream stream) {
  const int resident = p.multiprocessors * kBlocksPerSm<T>;
  int partials = 0;
  if (p.global_scale == nullptr) {
    const BlockTiles tiles(p.rows, p.blocks, std::min(resident, kMaxPartials));
    partials = tiles.thread_blocks();
    launch<amax<T>>(tiles.grid, kBlockThreads, 0, stream, p, tiles.log2_lanes);
  }
  const TileForm form = p.scales.layout == ScaleLayout::linear
                            ? TileForm{}
                            : TileForm{.lanes = 8, .row_unit = kScaleTileRows};
  const BlockTiles tiles(p.scale_rows, p.scale_blocks, resident, form);
  launch_with<quantize<T>>({.may_start_early = p.global_scale == nullptr}, tiles.grid,
                           kBlockThreads, 0, stream, p, tiles.log2_lanes, partials);
}

}  // namespace quantize_nvfp4

void launch_quantize_nvfp4(const QuantizeNvfp4Params& p, Stream stream) {
  switch (p.dtype) {
    case DType::fp32:
      return quantize_nvfp4::launch_both<float>(p, stream);
    case DType::fp16:
      return quantize_nvfp4::launch_both<__half>(p, stream);
    case DType::bf16:
      return quantize_nvfp4::launch_both<__nv_bfloat16>(p, stream);
    default:  // refused by the checks
      return;
  }
}

}  // namespace tilewright::cuda
