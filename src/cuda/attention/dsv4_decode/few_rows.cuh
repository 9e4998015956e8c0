// The GEMMs and the softmax of dsv4_decode where an item has few rows. They are transposed: keys,
// and dims of O, are the 64 rows of WGMMA, and the item's rows are its columns.
//
// A thread's columns of an accumulator (64, kFewRows) are 8 j + 2 (lane % 4) + e, for e = 0, 1. In
// each it has two elements, eight keys or dims apart. The results have the other form's bits: WGMMA
// adds the same products in the same order, and P is added in the same order, too.
#pragma once

#include "cuda/attention/dsv4_decode/rows.cuh"
#include "cuda/attention/dsv4_decode/softmax.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kThreadColumns = kFewRows / 4;  // of an accumulator that a thread has
static_assert(kThreadColumns == 4, "an stmatrix stores a thread's columns of two vectors of keys");

using FewShape = cute::Shape<cute::_64, cute::Int<kFewRows>, cute::_64>;
using MmaKq =
    decltype(cute::make_tiled_mma(cute::GMMA::ss_op_selector<Element, Element, float, FewShape>()));
using MmaVp = decltype(cute::make_tiled_mma(
    cute::GMMA::ss_op_selector<Element, Element, float, FewShape, cute::GMMA::Major::MN,
                               cute::GMMA::Major::K>()));
// Q and P: (rows, 64 dims or keys).
using LayoutFew =
    decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<Element>{},
                                 cute::Shape<cute::Int<kFewRows>, cute::Int<kBlockDims>>{}));
using FragmentFew =
    decltype(cute::partition_fragment_C(MmaVp{}, cute::Shape<cute::_64, cute::Int<kFewRows>>{}));

// S^T (keys, rows) += K Q^T, by column blocks of 64 dims.
template <typename TensorS>
__device__ __forceinline__ void issue_few_scores(bool accumulate, Element* sK, Element* sQ,
                                                 TensorS& tS) {
  wgmma_issue_if(accumulate, MmaKq{}, operand_a<MmaKq>(sK, LayoutK{}),
                 operand_b<MmaKq>(sQ, LayoutFew{}), tS);
}

// V^T P^T (64 dims, rows) of both tiles of a pair, one group of WGMMA instructions.
__device__ __forceinline__ void issue_few_values(Element* first, Element* second,
                                                 Element (&sP)[kPairTiles][kFewRows * kTileKeys],
                                                 FragmentFew& tPv) {
  MmaVp mma;
  cute::warpgroup_fence_operand(tPv);
  cute::warpgroup_arrive();
  mma.accumulate_ = cute::GMMA::ScaleOut::Zero;
  cute::for_each(cute::make_int_sequence<kPairTiles>{}, [&](auto tile) {
    const auto tV = operand_a<MmaVp>(tile == 0 ? first : second, LayoutVt{});
    const auto tP = operand_b<MmaVp>(sP[tile], LayoutFew{});
    cute::for_each(cute::make_int_sequence<decltype(cute::size<2>(tV))::value>{}, [&](auto k) {
      cute::gemm(mma, tV(cute::_, cute::_, k), tP(cute::_, cute::_, k), tPv);
      mma.accumulate_ = cute::GMMA::ScaleOut::One;
    });
  });
  cute::warpgroup_commit_batch();
}

// A thread's element in its column c = 2 j + e, for the first or the second of its keys or dims.
template <typename Tensor>
__device__ __forceinline__ auto& element(Tensor& t, int half, int c) {
  return t(4 * (c / 2) + 2 * half + c % 2);
}
// Column c of this thread, as a row of the item.
__device__ inline int row_of_column(int c, int thread) {
  return c / 2 * 8 + 2 * (thread % 4) + c % 2;
}

// A float as an integer, in the same order, and back.
__device__ inline int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ inline float float_of_ordered(int bits) {
  return __int_as_float(bits >= 0 ? bits : bits ^ 0x7fffffff);
}

// What consumers exchange through SMEM.
struct FewExchange {
  static constexpr int kMaximaPairs = 2;  // this one; the next one's are reset meanwhile
  static constexpr int kPutBlocks = 2;    // column blocks of O that are in SMEM at once
  static constexpr int kPad = 4;          // so that the banks of a warp's accesses differ

  alignas(1024) Element zeros[kBlock_elements];  // a key tile that does not exist
  // Ordered as integers; a thread's columns lie together: [lane % 4][c].
  alignas(16) int maxima[kMaximaPairs][kFewRows];
  float2 factors[kFewRows];  // of O and of the pair's results, in the same order
  float ends[kFewRows];      // factors of O at last
  union alignas(16) {
    // Sums of P over two neighbouring keys, exact and rounded: [tile][vector of eight keys][two
    // keys of a vector][row].
    float2 sums[kPairTiles][kTileKeys / 8][4][kFewRows + kPad];
    float2 slots[kMostPairSlots][kFewRows];  // factors of slots that are merged
    float o[kConsumers][kFewRows][kPutBlocks * kBlockDims + kPad];
  };

  // All threads of the block call it.
  __device__ void init() {
    if (threadIdx.x < kMaximaPairs * kFewRows) {
      reinterpret_cast<int*>(maxima)[threadIdx.x] = ordered(kMinusInf);
    }
    if (threadIdx.x < sizeof(zeros) / sizeof(uint4)) {
      reinterpret_cast<uint4*>(zeros)[threadIdx.x] = uint4{};
    }
    cutlass::arch::fence_view_async_shared();  // WGMMA reads the zeros
  }
};

// Where the maximum of an item's row lies among those.
__device__ inline int place_of_maximum(int row) {
  return row % 8 / 2 * kThreadColumns + row / 8 * 2 + row % 2;
}

// Scores of keys that a row does not see, or that do not exist, become -infinity.
template <typename TensorS>
__device__ __forceinline__ void mask_few(TensorS& tS, int thread, const Unit& unit,
                                         const ItemShape& shape, const TileAt& tile,
                                         std::uint64_t exist) {
  const int key0 = row_of_thread(0, thread);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    // A single token's rows see the same keys.
    const std::uint64_t keys =
        (exist & keys_seen(unit, shape, tile, unit.tokens == 1 ? 0 : row_of_column(c, thread))) >>
        key0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((keys >> 8 * half & 1) == 0) {
        element(tS, half, c) = kMinusInf;
      }
    }
  }
}

// The maxima of a warp's 16 keys: lanes exchange halves of their columns until each has one, and
// combine it with those of the pair so far.
template <typename TensorS>
__device__ __forceinline__ void find_few_maxima(const TensorS& tS, int thread, float scale_log2,
                                                int* maxima) {
  const int lane = thread % 32;
  float max[kThreadColumns];
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    max[c] = fmaxf(element(tS, 0, c), element(tS, 1, c));
  }
  int c = 0;  // this lane's column
#pragma unroll
  for (int bit = 16, kept = kThreadColumns / 2; bit >= 4; bit /= 2, kept /= 2) {
    const bool is_upper = (lane & bit) != 0;
    c += is_upper ? kept : 0;
#pragma unroll
    for (int i = 0; i < std::max(kept, 1); ++i) {
      const float sent = is_upper ? max[i] : max[i + kept];
      max[i] = fmaxf(is_upper ? max[i + kept] : max[i], __shfl_xor_sync(0xffffffffu, sent, bit));
    }
  }
  // A NaN is nobody's maximum.
  atomicMax(&maxima[lane % 4 * kThreadColumns + c], ordered(fmaxf(max[0], kMinusInf) * scale_log2));
}

// A reference that a row's scores are taken against.
__device__ inline float reference_of(int maximum) { return ceilf(float_of_ordered(maximum)); }

// S^T becomes P^T, in BF16 in `sP` (rows, keys), and in `sums` the sums of neighbouring keys.
template <typename TensorS>
__device__ __forceinline__ void weigh_few(
    TensorS& tS, int thread, float scale_log2, const float (&reference)[kThreadColumns],
    Element* sP, float2 (&sums)[kTileKeys / 8][4][kFewRows + FewExchange::kPad]) {
  const int lane = thread % 32;
  const int warp = thread % kWarpgroupThreads / 32;
  // An stmatrix stores two vectors of eight keys of 16 rows. A lane gives the place of one of them.
  const int vector = 2 * warp + lane / 8 % 2;
  const int first_row = lane / 16 * 8 + lane % 8;
  const bool is_odd = (lane & 4) != 0;  // an odd key
#pragma unroll
  for (int c = 0; c < kThreadColumns; c += 4) {
    std::uint32_t pairs[4];  // two columns: of key 0 and key 1, and of the next two columns
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int its = c + k / 2 * 2 + e;
        float& s = element(tS, k % 2, its);
        s = exp2_approx(fmaf(s, scale_log2, reference[its] == kMinusInf ? 0.0f : -reference[its]));
      }
      pairs[k] =
          pack_bf16x2(element(tS, k % 2, c + k / 2 * 2), element(tS, k % 2, c + k / 2 * 2 + 1));
    }
    asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     cute::cast_smem_ptr_to_uint(vector_of(sP, c / 2 * 8 + first_row, vector))),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
    // Lanes of an even and an odd key exchange what they have of the two vectors.
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float exact[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float first = element(tS, 0, c + 2 * k + e);
        const float second = element(tS, 1, c + 2 * k + e);
        exact[e] =
            (is_odd ? second : first) + __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 4);
      }
      const std::uint32_t own = is_odd ? pairs[2 * k + 1] : pairs[2 * k];
      const std::uint32_t others =
          __shfl_xor_sync(0xffffffffu, is_odd ? pairs[2 * k] : pairs[2 * k + 1], 4);
      *reinterpret_cast<float4*>(
          &sums[2 * warp + is_odd][lane / 8][row_of_column(c + 2 * k, thread)]) =
          float4{exact[0], __uint_as_float(own << 16) + __uint_as_float(others << 16), exact[1],
                 __uint_as_float(own & 0xffff0000u) + __uint_as_float(others & 0xffff0000u)};
    }
  }
}

}  // namespace tilewright::cuda::dsv4
