// Makes WGMMA's A operand from a packed weight tile: each thread turns its codes and scales into
// 16-bit numbers in its registers.
//
// The bits of two codes, selected from a word by a mask, are two BF16 numbers: the codes' values
// times 2^-126. The bits of a scale, with a constant exponent added, are the scale times 2^119. One
// multiplication gives value * scale * 2^-7, exactly. For FP16 the same bits are shifted left by
// three, and the factors are 2^-14 and 2^7. The epilogue removes the 2^-7.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/tensor.hpp>

#include "common/nvfp4_weight_layout.hpp"

namespace tilewright::cuda {

inline constexpr float kWeightFactor = 0x1p-7f;

// (a & mask) | (b & ~mask)
template <std::uint32_t kMask>
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(result) : "r"(a), "n"(kMask), "r"(b));
  return result;
}

__device__ __forceinline__ std::uint32_t rotate_right(std::uint32_t word, int bits) {
  return __funnelshift_r(word, word, bits);
}

template <typename Element>
struct PackedNumber;

template <>
struct PackedNumber<cute::bfloat16_t> {
  using Pair = __nv_bfloat162;
  // Of `bits`, only those in kPairMask are the pair's.
  __device__ static std::uint32_t codes(std::uint32_t bits) { return bits & kPairMask; }
  // `bits` is a word of pack_scales(), rotated so that the scales are in bits 4 ... 11, 20 ... 27.
  __device__ static std::uint32_t scales(std::uint32_t bits) {
    return select_bits<0x0ff00ff0u>(bits, 0x70007000u);
  }
  __device__ static Pair low(Pair pair) { return __low2bfloat162(pair); }
  __device__ static Pair high(Pair pair) { return __high2bfloat162(pair); }
};

template <>
struct PackedNumber<cute::half_t> {
  using Pair = __half2;
  __device__ static std::uint32_t codes(std::uint32_t bits) {
    return (bits & 0x80008000u) | (bits << 3 & 0x0e000e00u);
  }
  __device__ static std::uint32_t scales(std::uint32_t bits) { return bits << 3 & 0x7f807f80u; }
  __device__ static Pair low(Pair pair) { return __low2half2(pair); }
  __device__ static Pair high(Pair pair) { return __high2half2(pair); }
};

// Dequantises eight pairs of half a tile, alternately of rows g and g + 8; `scales` is their word.
template <typename Element>
__device__ __forceinline__ void dequantize_half(std::uint32_t a, std::uint32_t b,
                                                std::uint32_t scales, std::uint32_t* out) {
  using Number = PackedNumber<Element>;
  using Pair = typename Number::Pair;
  const std::uint32_t rest = select_bits<kRestMask>(a, rotate_right(b, 2));
  const std::uint32_t words[WeightTile::kPairs] = {
      a,      rotate_right(a, 4),    a << 6,   b, rotate_right(b, 4),
      b << 6, rotate_right(rest, 6), rest << 4};
#pragma unroll
  for (int first = 0; first < WeightTile::kPairs; first += 4) {
    const std::uint32_t bits = Number::scales(first == 0 ? scales : rotate_right(scales, 8));
    const Pair two_scales = reinterpret_cast<const Pair&>(bits);
#pragma unroll
    for (int i = first; i < first + 4; ++i) {
      const std::uint32_t code_bits = Number::codes(words[i]);
      const Pair product = __hmul2(reinterpret_cast<const Pair&>(code_bits),
                                   i % 2 == 0 ? Number::low(two_scales) : Number::high(two_scales));
      out[i] = reinterpret_cast<const std::uint32_t&>(product);
    }
  }
}

// The registers for a tile of 64 x 64 as the A operand of four steps of K, (MMA, 1, 4).
template <typename Element>
__device__ auto weight_fragment() {
  using namespace cute;
  return make_tensor<Element>(Shape<Shape<_2, _2, _2>, _1, _4>{});
}

// A thread's words of a tile that is not dequantised yet, for both halves of the tile.
struct PackedTile {
  uint4 codes;
  uint2 scales;

  __device__ static PackedTile load(const char* tile, int thread) {
    return {*reinterpret_cast<const uint4*>(tile + thread * 16),
            *reinterpret_cast<const uint2*>(tile + WeightTile::kCode_bytes + thread / 4 * 8)};
  }
};

template <typename Element, typename Fragment>
__device__ __forceinline__ void dequantize_tile(const PackedTile& tile, Fragment& fragment) {
  std::uint32_t* const out = cute::recast<std::uint32_t>(fragment).data();
  dequantize_half<Element>(tile.codes.x, tile.codes.y, tile.scales.x, out);
  dequantize_half<Element>(tile.codes.z, tile.codes.w, tile.scales.y, out + WeightTile::kPairs);
}

}  // namespace tilewright::cuda
