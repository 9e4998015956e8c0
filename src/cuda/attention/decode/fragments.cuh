// Warp-wide GEMMs on tiles of K and V: mma.sync, and its operands on their way from SMEM.
//
// A thread's place in a fragment follows from g = lane / 4 and t = lane % 4:
//   A (16 rows x 16)    words (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), two values each
//   B (16 x 8 columns)  words (2t, g), (2t + 8, g), two values each
//   D (16 x 8)          (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//
// Source    PTX ISA 9.0, mma.m16n8k16 and ldmatrix.
#pragma once

#include <cstdint>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/widen_e4m3.cuh"

namespace tilewright::cuda {
namespace decode {

// D += A B.
template <typename Element>
__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (cute::is_same_v<Element, cute::bfloat16_t>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 16-bit values. Lane i has the address of row i % 8 of matrix i / 8. It
// receives, of each matrix, the word t of row g or, transposed, rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Bytes 0 and 2 of a word, and bytes 1 and 3.
template <typename Element>
__device__ __forceinline__ std::uint32_t widen_even(std::uint32_t word) {
  return widen<Element>(spread<0, 2>(word));
}
template <typename Element>
__device__ __forceinline__ std::uint32_t widen_odd(std::uint32_t word) {
  return widen<Element>(spread<1, 3>(word));
}

// Those of Q's values in BF16, of which a NaN stays one.
__device__ __forceinline__ uint2 widen_queries(std::uint32_t word) {
  return {widen_query(spread<0, 2>(word)), widen_query(spread<1, 3>(word))};
}

// A tile of kDecodeTileKeys rows of kRow_bytes in SMEM, in boxes of as many bytes of each row as
// TMA's widest swizzle takes that divides a row. The swizzle exchanges the 16-byte chunks of a
// box's row by some bits of the row's number.
template <int kRowBytes>
struct TileLayout {
  static constexpr int kRow_bytes = kRowBytes;
  static constexpr int kBox_bytes = kRow_bytes % 128 == 0 ? 128 : kRow_bytes % 64 == 0 ? 64 : 32;
  static constexpr int kBoxes = kRow_bytes / kBox_bytes;
  static constexpr int kBoxChunks = kBox_bytes / 16;
  static constexpr int kChunks = kRow_bytes / 16;
  static constexpr int kTile_bytes = kDecodeTileKeys * kRow_bytes;
  static_assert(kRow_bytes % 32 == 0);

  // What the chunks of row `row` are exchanged by.
  __device__ static int exchange(int row) { return row / (128 / kBox_bytes) % kBoxChunks; }

  // Where a chunk of a row lies.
  __device__ static int offset(int row, int chunk) {
    return chunk / kBoxChunks * (kDecodeTileKeys * kBox_bytes) + row * kBox_bytes +
           (chunk % kBoxChunks ^ exchange(row)) * 16;
  }
};

// A lane's addresses for load_matrices() and load_transposed(): two matrices are 8 rows apart, and
// two 16-byte chunks. kRowsFirst says whether matrices 0 and 1 differ in their rows.
template <int kRow_bytes, bool kRowsFirst>
class MatrixPlaces {
 public:
  __device__ MatrixPlaces() {
    const int lane = threadIdx.x % 32;
    const int in_row = kRowsFirst ? lane / 16 : lane / 8 % 2;
    const int in_rows = kRowsFirst ? lane / 8 % 2 : lane / 16;
    const int row = in_rows * 8 + lane % 8;
    lane_ = row * T::kBox_bytes + (in_row ^ T::exchange(row)) * 16;
  }

  // Of the rows [row0, row0 + 16) and the chunks `chunk` and chunk + 1. row0 is a multiple of 16,
  // `chunk` of 2.
  __device__ std::uint32_t at(std::uint32_t tile, int row0, int chunk) const {
    constexpr int kBox = kDecodeTileKeys * T::kBox_bytes;
    return tile + chunk / T::kBoxChunks * kBox + row0 * T::kBox_bytes +
           (lane_ ^ chunk % T::kBoxChunks * 16);
  }

 private:
  using T = TileLayout<kRow_bytes>;
  std::uint32_t lane_;
};

}  // namespace decode
}  // namespace tilewright::cuda
