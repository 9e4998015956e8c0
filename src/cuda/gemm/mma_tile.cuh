// A block's 64 x 64 of C on tensor cores, from swizzled tiles in SMEM.
#pragma once

#include <cstdint>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/mma_sm80.hpp>

namespace tilewright::cuda {

inline constexpr int kMmaTile = 64;      // Br, Bc and Bk
inline constexpr int kMmaThreads = 128;  // four warps, 2 x 2, of 32 x 32 of C each
inline constexpr int kVector = 8;        // BF16 values in 16 bytes: the unit of loads and swizzle
inline constexpr int kRowVectors = kMmaTile / kVector;

// A tile has 64 rows of 64 BF16 values; a row's 128 bytes span all 32 banks. Vector j of row i lies
// at j ^ (i % 8), so that vector j of eight rows, which one step of ldmatrix reads, lies in eight
// different groups of four banks.
struct alignas(128) SwizzledTile {
  uint4 vectors[kMmaTile * kRowVectors];

  __device__ uint4& at(int row, int vector) {
    return vectors[row * kRowVectors + (vector ^ row % kRowVectors)];
  }
};

// Loads rows row0, row0 + 1, ... of a BF16 matrix from column k0 on, 16 bytes a thread at a time.
// Rows from row_end on become zeros.
__device__ __forceinline__ void load_tile(SwizzledTile& tile, const void* matrix,
                                          std::int64_t stride, int row0, int row_end, int k0) {
#pragma unroll
  for (int i = threadIdx.x; i < kMmaTile * kRowVectors; i += kMmaThreads) {
    const int row = i / kRowVectors;
    const int vector = i % kRowVectors;
    const auto* const source =
        static_cast<const std::uint16_t*>(matrix) + (row0 + row) * stride + k0 + vector * kVector;
    tile.at(row, vector) =
        row0 + row < row_end ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
  }
}

// A warp's 32 x 32 of C: 2 x 4 results of mma m16n8k16.
class WarpTile {
 public:
  __device__ WarpTile()
      : lane_(threadIdx.x % 32),
        row0_(threadIdx.x / 64 * kSide),
        column0_(threadIdx.x / 32 % 2 * kSide) {}

  // C += A B^T over the tiles' 64 columns of K.
  __device__ void multiply(SwizzledTile& sA, SwizzledTile& sB) {
#pragma unroll
    for (int step = 0; step < kMmaTile / 16; ++step) {
      std::uint32_t rA[2][4];
      std::uint32_t rB[2][4];  // two blocks of 8 columns each
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_fragment(sA.at(row0_ + 16 * i + lane_ % 16, 2 * step + lane_ / 16), rA[i]);
        load_fragment(
            sB.at(column0_ + 16 * i + lane_ % 8 + lane_ / 16 * 8, 2 * step + lane_ / 8 % 2), rB[i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* const c = rC_ + kSums * (4 * i + j);
          const std::uint32_t* const b = rB[j / 2] + j % 2 * 2;
          cute::SM80_16x8x16_F32BF16BF16F32_TN::fma(c[0], c[1], c[2], c[3], rA[i][0], rA[i][1],
                                                    rA[i][2], rA[i][3], b[0], b[1], c[0], c[1],
                                                    c[2], c[3]);
        }
      }
    }
  }

  // Adds the sums so far to the totals, rounded to nearest, and sets them to 0. Tensor cores cut
  // off what does not fit a sum, always towards zero: a long sum would lose more by that than by
  // roundings.
  __device__ void add_to_total() {
#pragma unroll
    for (int i = 0; i < kMmas * kSums; ++i) {
      total_[i] += rC_[i];
      rC_[i] = 0.0f;
    }
  }

  // Calls f(row, column, value) for this thread's elements, counted from the block's first.
  template <typename F>
  __device__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < kSums; ++e) {
          const int sum = kSums * (4 * i + j) + e;
          f(row0_ + 16 * i + lane_ / 4 + e / 2 * 8, column0_ + 8 * j + lane_ % 4 * 2 + e % 2,
            total_[sum] + rC_[sum]);
        }
      }
    }
  }

 private:
  static constexpr int kSide = 32;
  static constexpr int kMmas = 2 * 4;
  static constexpr int kSums = 4;  // of one mma, in a thread

  static __device__ void load_fragment(const uint4& vector, std::uint32_t (&fragment)[4]) {
    cute::SM75_U32x4_LDSM_N::copy(reinterpret_cast<const cute::uint128_t&>(vector), fragment[0],
                                  fragment[1], fragment[2], fragment[3]);
  }

  int lane_;
  int row0_;
  int column0_;
  float rC_[kMmas * kSums] = {};
  float total_[kMmas * kSums] = {};
};

}  // namespace tilewright::cuda
