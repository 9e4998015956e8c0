// The softmax of dsv4_attention(). P = exp2(s - r) of a pair of key tiles is taken against a
// reference r of its own: the maximum of the pair's scores, in units of log2, rounded up to a whole
// number. So pairs do not depend on each other, whoever computes them. O and the sums go from pair
// to pair in order, under a reference that a much larger one replaces. Factors are powers of two.
//
// A row keeps two sums. `sum`, of the exact P, is l, of the LSE. `rounded_sum`, of P as it is
// multiplied with V, divides O, so that weights add up to 1.
#pragma once

#include <cute/arch/copy_sm90.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/dsv4_decode/tiles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kThreadRows = 2;  // rows of an accumulator that a thread has

// Keeps the compiler from computing ahead of this call what depends on the value.
__device__ inline void compute_here(float& value) { asm volatile("" : "+f"(value)); }

// The row of an item that is row i of this thread's accumulator.
__device__ inline int row_of_thread(int i, int thread = this_thread()) {
  return thread % kWarpgroupThreads / 32 * 16 + thread % 32 / 4 + 8 * i;
}

// A set of a tile's keys has a bit for each: those before `end`.
__device__ inline std::uint64_t keys_before(int end) {
  return end >= kTileKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << max(end, 0)) - 1;
}

// The positions of a tile that a row sees.
__device__ inline std::uint64_t keys_seen(const Unit& unit, const ItemShape& shape,
                                          const TileAt& tile, int row) {
  const int token = row / shape.tile_heads;
  if (token >= unit.tokens) {
    return 0;
  }
  const int first = unit.begin[tile.source] + tile.key0;
  return keys_before(unit.sees_end[tile.source][token] - first) &
         ~keys_before(unit.sees_begin[tile.source][token] - first);
}

// Do all rows see the whole tile, of which these keys exist? A single token sees all that exist.
__device__ inline bool sees_all_of_tile(const Unit& unit, std::uint64_t exist) {
  return unit.tokens == 1 && exist == ~std::uint64_t{0};
}

// Scores of keys that a row does not see, or that do not exist, become -infinity. It is called
// unless sees_all_of_tile().
template <typename TensorS>
__device__ void mask(TensorS& rS, const Unit& unit, const ItemShape& shape, const TileAt& tile,
                     std::uint64_t exist) {
  std::uint64_t keys[kThreadRows];
  bool are_all = true;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    keys[i] = exist & keys_seen(unit, shape, tile, row_of_thread(i));
    are_all &= keys[i] == ~std::uint64_t{0};
  }
  if (__all_sync(0xffffffffu, are_all)) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const std::uint64_t from_own = keys[i] >> 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {  // key 8 * (j / 2) + 2 * (lane % 4) + j % 2
      if ((from_own >> (8 * (j / 2) + j % 2) & 1) == 0) {
        rS(i, j) = kMinusInf;
      }
    }
  }
}

// A row's statistics over some keys.
struct RowSoFar {
  float reference = kMinusInf;
  float max = kMinusInf;
  float sum = 0.0f;
  float rounded_sum = 0.0f;
};

// By how much a reference may exceed the one so far, in units of log2, without replacing it.
inline constexpr float kReferenceSlack = 8.0f;

// The statistics of a row over keys `a` and later keys `b`, under one reference, and the factors
// that bring both sides' O under it.
struct Appended {
  RowSoFar row;
  float before;  // of a
  float behind;  // of b

  __device__ Appended(const RowSoFar& a, const RowSoFar& b) {
    const bool is_raised = b.reference > a.reference + kReferenceSlack;
    const float reference = is_raised ? b.reference : a.reference;
    before = a.reference == reference ? 1.0f : exp2_approx(a.reference - reference);
    behind = b.reference == reference ? 1.0f : exp2_approx(b.reference - reference);
    row = {.reference = reference,
           .max = fmaxf(a.max, b.max),
           .sum = fmaf(b.sum, behind, a.sum * before),
           .rounded_sum = fmaf(b.rounded_sum, behind, a.rounded_sum * before)};
  }
};

// The maxima of the thread's rows of S, in units of log2.
template <typename Mma, typename TensorS>
__device__ void row_maxima(const TensorS& rS, float scale_log2, float (&max)[kThreadRows]) {
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    float largest[2] = {kMinusInf, kMinusInf};  // two chains are half as long as one
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      largest[j % 2] = fmaxf(largest[j % 2], rS(i, j));
    }
    max[i] = row_max<Mma>(fmaxf(largest[0], largest[1])) * scale_log2;
  }
}

// What a tile adds to a row's sums.
struct TileSums {
  float exact[kThreadRows];
  float rounded[kThreadRows];
};

// Scores (rows, keys) become P in BF16. `put` gets it by two neighbouring vectors of eight keys at
// once: put(vector, pairs), where pairs[k] holds two keys of the thread's row k % 2, in vector
// vector + k / 2.
template <typename Mma, typename TensorS, typename Put>
__device__ __forceinline__ TileSums weigh(const TensorS& rS, float scale_log2,
                                          const float (&reference)[kThreadRows], const Put& put) {
  float subtracted[kThreadRows];
  float exact[kThreadRows] = {};
  float rounded[kThreadRows] = {};
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    subtracted[i] = reference[i] == kMinusInf ? 0.0f : reference[i];
  }
#pragma unroll
  for (int vector = 0; vector < kBlockDims / 8; vector += 2) {
    std::uint32_t pairs[2 * kThreadRows];
#pragma unroll
    for (int k = 0; k < 2 * kThreadRows; ++k) {
      const int i = k % kThreadRows;
      const int j = 2 * (vector + k / kThreadRows);
      const float low = exp2_approx(fmaf(rS(i, j), scale_log2, -subtracted[i]));
      const float high = exp2_approx(fmaf(rS(i, j + 1), scale_log2, -subtracted[i]));
      exact[i] += low + high;
      pairs[k] = pack_bf16x2(low, high);
      rounded[i] += __uint_as_float(pairs[k] << 16) + __uint_as_float(pairs[k] & 0xffff0000u);
    }
    put(vector, pairs);
  }
  TileSums sums;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    sums.exact[i] = row_sum<Mma>(exact[i]);
    sums.rounded[i] = row_sum<Mma>(rounded[i]);
  }
  return sums;
}

// Puts P in a tile (64, 64) in SMEM: an stmatrix stores two vectors of the warp's 16 rows, each
// lane giving the address of one row's vector. The swizzle exchanges a row's vectors by XOR, so
// that a lane's addresses differ in two bits.
class PutInShared {
 public:
  __device__ explicit PutInShared(Element* sP) {
    const int thread = this_thread();
    const int row = thread % kWarpgroupThreads / 32 * 16 + thread % 16;
    first_ = cute::cast_smem_ptr_to_uint(vector_of(sP, row, thread % 32 / 16));
  }
  __device__ __forceinline__ void operator()(int vector,
                                             const std::uint32_t (&pairs)[2 * kThreadRows]) const {
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     first_ ^ vector * 16),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }

 private:
  std::uint32_t first_;  // in vector 0 or 1, as the lane has it
};

// Puts P in memory, as it lies in SMEM. Two neighbouring lanes exchange what each has of two
// vectors, so that each has 8 bytes of one.
struct PutInMemory {
  Element* tile;

  __device__ __forceinline__ void operator()(int vector,
                                             const std::uint32_t (&pairs)[2 * kThreadRows]) const {
    const int lane = threadIdx.x % 32;
    const bool is_odd = lane % 2 != 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const std::uint32_t first = pairs[i];
      const std::uint32_t second = pairs[i + kThreadRows];
      const std::uint32_t others = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1);
      Element* const to = vector_of(tile, row_of_thread(i), vector + is_odd) + lane % 4 / 2 * 4;
      __stcg(reinterpret_cast<uint2*>(to), is_odd ? uint2{others, second} : uint2{first, others});
    }
  }
};

// Must O be brought under another reference before later keys are added, by these factors of the
// thread's rows? If no lane's must, it is not touched.
__device__ inline bool some_change(float before0, float before1) {
  return __any_sync(0xffffffffu, before0 != 1.0f || before1 != 1.0f);
}
// Does it.
template <typename Mma, typename TensorO>
__device__ __forceinline__ void change(float before0, float before1, TensorO& tOrO) {
  auto rO = by_rows<Mma>(tOrO);
  const float before[kThreadRows] = {before0, before1};
  scale_rows(rO, before);
}

// Adds P V of later keys, times these factors, to O's columns of both rows.
template <typename Mma, typename TensorO, typename TensorPv>
__device__ __forceinline__ void add(float behind0, float behind1, TensorO& tOrO,
                                    const TensorPv& its) {
  auto rO = by_rows<Mma>(tOrO);
  const auto rPv = by_rows<Mma>(its);
#pragma unroll
  for (int j = 0; j < cute::size<1>(rO); ++j) {
    rO(0, j) = fmaf(rPv(0, j), behind0, rO(0, j));
    rO(1, j) = fmaf(rPv(1, j), behind1, rO(1, j));
  }
}

}  // namespace tilewright::cuda::dsv4
