// The epilogue: it scales the sums of C^T, adds bias and residual, and writes C in its dtype.
//
// A warp has the sums of 16 rows of the weight, which are 16 neighbouring columns of C, for those
// tokens of the tile that its consumer finishes. It rearranges them in SMEM, at most 32 tokens at a
// time, so that four lanes have the 16 sums of a token, four each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cute/arch/copy_sm90.hpp>

#include "cuda/gemm/nvfp4/fragment.cuh"
#include "cuda/gemm/nvfp4/global_scale.cuh"
#include "ops/gemm_nvfp4/params.hpp"

namespace tilewright::cuda {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

// Where a tile lies in C.
struct TileOrigin {
  int row;  // of the weight: a column of C
  int token;
  int batch;
  int end = 0;  // the first token behind the tile
};

// Whether sums can be finished in their registers: all that they meet depends on the row alone.
inline bool is_plain(const GemmNvfp4Params& p) {
  return p.c_dtype != DType::fp32 && p.residual == nullptr && p.global_a.stride.row == 0;
}

// Four neighbours in a row of C or of the residual.
template <typename T>
struct alignas(4 * sizeof(T)) Quad {
  T value[4];
};

// The lane's number, asked of the hardware again. What is computed from it is computed here and
// holds no registers in the main loop.
__device__ inline int lane_asked_anew() {
  int lane = 0;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Likewise the warp's number in its warpgroup.
__device__ inline int warp_asked_anew() {
  int thread = 0;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread / 32 % 4;
}

template <int kTokens>
class WarpEpilogue {
 public:
  static constexpr int kRows = 16;
  // Tokens of a pass: few for large tiles, which have no registers to spare and rarely come here.
  static constexpr int kPassTokens = kTokens > 128 ? 8 : std::min(kTokens, 32);
  static constexpr int kPitch = kRows + 4;  // no two lanes write to one bank
  static constexpr int kGroup = 8;          // tokens of a matrix of stmatrix
  static constexpr int kLine = kRows / 2;   // words of a token
  using Buffer = float[kPassTokens * kPitch];

  // What the sums of a lane's rows g and g + 8 meet in a plain GEMM. It comes from global memory,
  // so that load() is called long before run().
  struct Inputs {
    float scale_b[2] = {1.0f, 1.0f};
    float scale_a = 1.0f;
    float bias[2] = {};
  };

  // `origin.row` is the warp's first.
  __device__ static Inputs load(const GemmNvfp4Params& p, bool is_plain, const TileOrigin& origin) {
    Inputs inputs{};
    if (!is_plain || origin.row >= p.n) {
      return inputs;
    }
    const GlobalScales scales_b(p.global_b, origin.batch);
    inputs.scale_a = GlobalScales(p.global_a, origin.batch).load(0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = origin.row + static_cast<int>(threadIdx.x % 32 / 4) + half * 8;
      inputs.scale_b[half] = scales_b.load(row);
      inputs.bias[half] =
          p.c_dtype == DType::bf16 ? bias_of<__nv_bfloat16>(p, row) : bias_of<__half>(p, row);
    }
    return inputs;
  }

  // The product of all factors, for sums of rows g and g + 8.
  struct Factors {
    float of[2];

    __device__ Factors(const GemmNvfp4Params& p, int batch, const Inputs& inputs) {
      const float a = GlobalScales(p.global_a, batch).multiplier(inputs.scale_a);
      const GlobalScales scales_b(p.global_b, batch);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        of[half] = sum_factor(a, scales_b.multiplier(inputs.scale_b[half]));
      }
    }

    __device__ bool are_normal() const { return is_normal(of[0]) && is_normal(of[1]); }
  };

  // Finishes sum i. Of four sums, two are of tokens c, c + 1 and row g, and two of row g + 8.
  template <typename Accumulator>
  __device__ static float finished(const Accumulator& acc, int i, const Factors& factors,
                                   const Inputs& inputs) {
    return finish_sum(acc(i), factors.of[i / 2 % 2], inputs.bias[i / 2 % 2]);
  }

  // All lanes of a warp call it together. It overwrites `acc`.
  template <typename Accumulator>
  __device__ static void run(const GemmNvfp4Params& p, bool is_plain, Buffer& buffer,
                             Accumulator&& acc, const TileOrigin& origin, const Inputs& inputs) {
    if (origin.row >= p.n) {
      return;
    }
    if constexpr (kTokens <= 32) {
      if (is_plain) {
        const Factors factors(p, origin.batch, inputs);
        if (__all_sync(0xffffffffu, factors.are_normal())) {
          if (p.c_dtype == DType::bf16) {
            write_lines<__nv_bfloat16>(p, buffer, acc, origin, inputs, factors);
          } else {
            write_lines<__half>(p, buffer, acc, origin, inputs, factors);
          }
          return;
        }
      }
    }
    if (p.c_dtype == DType::fp32) {
      write_quads<float>(p, buffer, acc, origin);
    } else if (p.c_dtype == DType::bf16) {
      write_quads<__nv_bfloat16>(p, buffer, acc, origin);
    } else {
      write_quads<__half>(p, buffer, acc, origin);
    }
  }

 private:
  static constexpr int kPassSums = kPassTokens / 2;  // of a thread, in a pass

  template <typename T>
  __device__ static float bias_of(const GemmNvfp4Params& p, int row) {
    return p.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(p.bias)[row * p.bias_stride]);
  }

  // Sums are finished in their registers, transposed by stmatrix on their way to SMEM, eight tokens
  // at a time, and written with eight bytes a lane.
  template <typename T, typename Accumulator>
  __device__ static void write_lines(const GemmNvfp4Params& p, Buffer& buffer, Accumulator& acc,
                                     const TileOrigin& origin, const Inputs& inputs,
                                     const Factors& factors) {
    const int lane = lane_asked_anew();
    // From the fourth line of a group on, a line's halves change places. Then no two rows of a
    // matrix, and no two lines, meet in a bank.
    const auto place = [&](int token, int half) {
      return &buffer[token * kLine + (half ^ token / 4) * kLine / 2];
    };
    float* const written = place(lane % 8, lane / 8 % 2);
    const float* const read = place(lane / 4, lane % 4 / 2) + lane % 2 * 2;
    T* c = static_cast<T*>(p.c) +
           (origin.batch * p.c_stride.batch + (origin.token + lane / 4) * p.c_stride.row +
            origin.row + lane % 4 * 4);
    const int tokens = origin.end - origin.token;
    __syncwarp();  // the tile before has been read
#pragma unroll
    for (int group = 0; group < kTokens; group += kGroup) {
      std::uint32_t pairs[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = group / 2 + 2 * half;
        const T both[2] = {from_float<T>(finished(acc, at, factors, inputs)),
                           from_float<T>(finished(acc, at + 1, factors, inputs))};
        pairs[half] = reinterpret_cast<const std::uint32_t&>(both);
      }
      cute::SM90_U16x4_STSM_T::copy(pairs[0], pairs[1],
                                    *reinterpret_cast<cute::uint128_t*>(written + group * kLine));
    }
    __syncwarp();
#pragma unroll
    for (int group = 0; group < kTokens; group += kGroup) {
      if (group + lane / 4 < tokens) {
        *reinterpret_cast<uint2*>(c) = *reinterpret_cast<const uint2*>(read + group * kLine);
      }
      c += kGroup * p.c_stride.row;
    }
  }

  // Moves the next pass's sums to the front, so that the loop over passes need not be unrolled.
  // Unrolled, it would be pages of code that hardly ever run and are fetched from far away.
  template <typename Accumulator>
  __device__ static void next_pass(Accumulator& acc) {
#pragma unroll
    for (int i = 0; i < kTokens / 2 - kPassSums; ++i) {
      acc(i) = acc(i + kPassSums);
    }
  }

  // For any C: the sums are written to SMEM, and read back four neighbours at a time.
  template <typename T, typename Accumulator>
  __device__ static void write_quads(const GemmNvfp4Params& p, Buffer& buffer, Accumulator& acc,
                                     const TileOrigin& origin) {
    const int lane = lane_asked_anew();
    const int row = origin.row + lane % 4 * 4;
    const GlobalScales scales_b(p.global_b, origin.batch);
    const GlobalScales scales_a(p.global_a, origin.batch);
    float scale_b[4];
    float multiplier_b[4];
    float bias[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale_b[i] = scales_b.load(row + i);
      multiplier_b[i] = scales_b.multiplier(scale_b[i]);
      bias[i] = bias_of<T>(p, row + i);
    }
    const auto first_of = [&](auto* matrix, const MatrixStrides& stride) {
      return matrix + (origin.batch * stride.batch + origin.token * stride.row + row);
    };
    T* const c = first_of(static_cast<T*>(p.c), p.c_stride);
    const T* const residual = p.residual == nullptr
                                  ? nullptr
                                  : first_of(static_cast<const T*>(p.residual), p.residual_stride);
    const int tokens = min(kTokens, origin.end - origin.token);

#pragma unroll 1
    for (int first = 0; first < tokens; first += kPassTokens) {
      __syncwarp();  // all lanes have read what the pass before wrote
#pragma unroll
      for (int i = 0; i < kPassSums; ++i) {  // tokens c and c + 1 of row g, then of row g + 8
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        buffer[token * kPitch + lane / 4 + i / 2 % 2 * 8] = acc(i);
      }
      next_pass(acc);
      __syncwarp();
#pragma unroll 1
      for (int in_pass = lane / 4; in_pass < min(kPassTokens, tokens - first); in_pass += 8) {
        const int token = first + in_pass;
        const float4 sums =
            reinterpret_cast<const float4*>(buffer)[in_pass * kPitch / 4 + lane % 4];
        float value[4] = {sums.x, sums.y, sums.z, sums.w};
        const float scale_a = scales_a.load(origin.token + token);
        const float multiplier_a = scales_a.multiplier(scale_a);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float factor = sum_factor(multiplier_a, multiplier_b[i]);
          if (is_normal(factor)) {
            value[i] = finish_sum(value[i], factor, bias[i]);
          } else {
            const float scaled_by_b = scales_b.apply(value[i] * (1.0f / kWeightFactor), scale_b[i]);
            value[i] = scales_a.apply(scaled_by_b, scale_a) + bias[i];
          }
        }
        if (residual != nullptr) {
          const auto added =
              *reinterpret_cast<const Quad<T>*>(residual + token * p.residual_stride.row);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            value[i] += to_float(added.value[i]);
          }
        }
        *reinterpret_cast<Quad<T>*>(c + token * p.c_stride.row) = {
            from_float<T>(value[0]), from_float<T>(value[1]), from_float<T>(value[2]),
            from_float<T>(value[3])};
      }
    }
  }
};

}  // namespace tilewright::cuda
