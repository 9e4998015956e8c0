// Sixteen floats at a time, as vectors of GCC's extensions: the compiler maps them to the registers
// that the calling function's target has, into which everything here is inlined. A C-style cast
// between vector types keeps the bits.
#pragma once

#include <cstdint>
#include <cstring>

#define TILEWRIGHT_INLINE inline __attribute__((always_inline))

namespace tilewright::cpu {

inline constexpr int kLanes = 16;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Bits = std::uint32_t __attribute__((vector_size(4 * kLanes)));

TILEWRIGHT_INLINE void load(const float* source, Floats& value) {
  std::memcpy(&value, source, sizeof(value));
}

TILEWRIGHT_INLINE void store(float* target, const Floats& value) {
  std::memcpy(target, &value, sizeof(value));
}

// x <- 2^x for x <= 0, with a relative error of about 2^-23; below -126 the result is 0.
// 2^x = 2^n 2^f, where n is the nearest integer: 2^f is its Taylor polynomial for |f| <= 1/2, and n
// is added to the exponent's bits.
TILEWRIGHT_INLINE void exp2_in_place(Floats& x) {
  constexpr float kShift = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const Floats shifted = x + kShift;
  const Floats f = x - (shifted - kShift);
  Floats p = f * 1.5403530e-4f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const Bits bits = (Bits)p + ((Bits)shifted << 23);
  x = (Floats)(bits & ~(Bits)(x < -126.0f));  // a NaN stays one
}

// C (M, N) = A (M, K) B (K, N), or += with kAccumulate. N is a multiple of 16; rows lie lda, ldb
// and ldc apart. Blocks of kRows x 16 of C stay in registers over all of K.
template <int kRows, bool kAccumulate>
TILEWRIGHT_INLINE void multiply_block(const float* a, int lda, const float* b, int ldb, float* c,
                                      int ldc, int k_count) {
  Floats sum[kRows];
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kAccumulate) {
      load(c + i * ldc, sum[i]);
    } else {
      sum[i] = Floats{};
    }
  }
  for (int k = 0; k < k_count; ++k) {
    Floats row;
    load(b + static_cast<std::int64_t>(k) * ldb, row);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      sum[i] += a[i * lda + k] * row;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store(c + i * ldc, sum[i]);
  }
}

template <int kRows, bool kAccumulate>
TILEWRIGHT_INLINE void multiply(const float* a, int lda, const float* b, int ldb, float* c, int ldc,
                                int m, int n, int k) {
  for (int column = 0; column < n; column += kLanes) {
    int row = 0;
    for (; row + kRows <= m; row += kRows) {
      multiply_block<kRows, kAccumulate>(a + row * lda, lda, b + column, ldb,
                                         c + row * ldc + column, ldc, k);
    }
    for (; row < m; ++row) {
      multiply_block<1, kAccumulate>(a + row * lda, lda, b + column, ldb, c + row * ldc + column,
                                     ldc, k);
    }
  }
}

}  // namespace tilewright::cpu
