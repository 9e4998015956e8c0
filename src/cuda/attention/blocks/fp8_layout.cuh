// How attention's tiles of E4M3 lie in SMEM and in registers: the MMAs, and how P becomes an
// operand. It is all known at compile time.
//
// An 8-bit WGMMA reads both operands K-major. For Q K^T that is how Q and K lie in memory. For P V
// it is V transposed, (D, keys) with keys contiguous. And a thread's part of P must be where the
// accumulator of S left it. In 16 bits this is so by itself; in 8 bits an operand's register has
// four neighbouring columns, and an accumulator has two. In a row, lane c of the four that share it
// holds
//
//   of S, columns (keys)      2c, 2c+1 | 8 + 2c, 8 + 2c+1 | 16 + 2c, ... | 24 + 2c, ...
//   of operand A, columns     4c, 4c+1,  4c+2, 4c+3       | 16 + 4c, ... , 16 + 4c+3
//
// These are equally many. So P needs no exchange between lanes if the two products agree on an
// order of keys in which S's column is another than A's:
//
//   V is reordered (kByValues)  column 16 h + 4 c + 2 b1 + b0 of V^T has key
//                               16 h + 8 b1 + 2 c + b0, in every 16 keys:
//                               0 1 8 9 | 2 3 10 11 | 4 5 12 13 | 6 7 14 15
//   K is reordered (kByKeys)    row n of a K tile has key 2 n, and row Bc / 2 + n key 2 n + 1: the
//                               even keys, then the odd ones. V^T stays as it is
//
// tests/layout/test_fp8_layout.cpp checks both for every thread and register.
#pragma once

#include <cstdint>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "common/divisor.hpp"
#include "cuda/common/wgmma_layout.cuh"

namespace tilewright::cuda {

// Which operand's keys are reordered.
enum class KeyOrder : std::uint8_t { kByValues, kByKeys };

// The column of S, for each column of V^T, that has the same key.
template <KeyOrder kOrder, int kBc>
constexpr auto score_columns() {
  using namespace cute;
  if constexpr (kOrder == KeyOrder::kByValues) {
    return Layout<Shape<_2, _2, _4, Int<kBc / 16>>, Stride<_1, _8, _2, _16>>{};
  } else {
    return Layout<Shape<_2, Int<kBc / 2>>, Stride<Int<kBc / 2>, _1>>{};
  }
}

// The bits of those of a thread's 32 scores of a row whose keys come before `end`, in a tile of 128
// keys of which the even ones come first (KeyOrder::kByKeys). Of every 16 keys, each of the four
// lanes of a row holds four neighbours, two in each half of its scores.
TILEWRIGHT_HOST_DEVICE constexpr std::uint32_t reordered_bits_before(int end, int lane) {
  constexpr int kHalf = 16;  // scores
  std::uint32_t bits = 0;
  for (int odd = 0; odd < 2; ++odd) {
    const int keys = end - 4 * lane - odd;
    const int neighbours = ((keys & 15) + 1) / 2;
    const int count = 2 * (keys >> 4) + (neighbours < 2 ? neighbours : 2);
    const int within = count < 0 ? 0 : count < kHalf ? count : kHalf;
    bits |= ((1u << within) - 1u) << kHalf * odd;
  }
  return bits;
}

// K-major layouts whose rows have `kRow_bytes`, swizzled by as much as divides that.
template <typename Element, int kRow_bytes>
using AtomOfRows =
    cute::conditional_t<kRow_bytes % 128 == 0, cute::GMMA::Layout_K_SW128_Atom<Element>,
                        cute::GMMA::Layout_K_SW64_Atom<Element>>;

template <int kHeadDim, int kBc, int kStages>
struct Fp8Layouts {
  using Element = cute::float_e4m3_t;
  using Output = cute::bfloat16_t;
  using Rows = cute::_64;  // of a warpgroup
  using Bc = cute::Int<kBc>;
  using D = cute::Int<kHeadDim>;
  using Stages = cute::Int<kStages>;
  static constexpr int kBoxColumns = kHeadDim % 128 == 0 ? 128 : 64;  // of a TMA load of rows
  static_assert(kHeadDim % 64 == 0 && kBc % 64 == 0);
  using AtomRows = AtomOfRows<Element, kHeadDim>;
  using LayoutQ = decltype(cute::tile_to_shape(AtomRows{}, cute::Shape<Rows, D>{}));
  using LayoutK = decltype(cute::tile_to_shape(AtomRows{}, cute::Shape<Bc, D, Stages>{}));
  using LayoutV = decltype(cute::tile_to_shape(AtomRows{}, cute::Shape<Bc, D>{}));  // a stage
  using LayoutVt =
      decltype(cute::tile_to_shape(AtomOfRows<Element, kBc>{}, cute::Shape<D, Bc, Stages>{}));
  using TiledMmaQk = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, cute::Shape<Rows, Bc, D>>()));
  template <int kColumns>
  using MmaPv = decltype(cute::make_tiled_mma(
      cute::GMMA::rs_op_selector<Element, Element, float,
                                 cute::Shape<Rows, cute::Int<kColumns>, Bc>, cute::GMMA::Major::K,
                                 cute::GMMA::Major::K>()));
  using TiledMmaPv = MmaPv<kHeadDim>;

  // S's registers in the order in which A has them: (A's values, 1, steps).
  template <KeyOrder kOrder>
  __host__ __device__ static constexpr auto score_registers() {
    return c_registers_of_a<TiledMmaQk, TiledMmaPv>(score_columns<kOrder, kBc>());
  }
};

}  // namespace tilewright::cuda
