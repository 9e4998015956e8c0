// Attention's tiles on tensor cores: SMEM layouts, the MMAs of both GEMMs, and the softmax on the
// accumulator in the registers where it lies. A warpgroup has 64 query rows.
#pragma once

#include "cuda/attention/tile_walk.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_layout.cuh"
#include "cuda/common/wgmma_shapes.cuh"

namespace tilewright::cuda {

inline constexpr int kWarpgroupRows = 64;

// S (64, Bc) = Q K^T reads both operands from SMEM; O (64, Dv) += P V reads P from registers. V
// lies in SMEM as in GMEM, Dv contiguous; as the B operand (Dv, Bc) that is MN-major. Where a head
// dim is no multiple of 64, the swizzle has half the width.
template <typename Element, int kHeadDim, int kBc, int kStages, int kValueDim = kHeadDim>
struct WgmmaTiles {
  using Rows = cute::Int<kWarpgroupRows>;
  using Bc = cute::Int<kBc>;
  using D = cute::Int<kHeadDim>;
  using Dv = cute::Int<kValueDim>;
  using Stages = cute::Int<kStages>;
  static constexpr bool kIsWide = kHeadDim % 64 == 0 && kValueDim % 64 == 0;
  static constexpr int kBoxColumns = kIsWide ? 64 : 32;  // of a TMA load: the swizzle's width
  using AtomK = cute::conditional_t<kIsWide, cute::GMMA::Layout_K_SW128_Atom<Element>,
                                    cute::GMMA::Layout_K_SW64_Atom<Element>>;  // 8 x kBoxColumns
  using AtomMn = cute::conditional_t<kIsWide, cute::GMMA::Layout_MN_SW128_Atom<Element>,
                                     cute::GMMA::Layout_MN_SW64_Atom<Element>>;  // transposed
  using LayoutQ = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, D>{}));
  using LayoutO = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, Dv>{}));
  using LayoutK = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Bc, D, Stages>{}));
  using LayoutVt = decltype(cute::tile_to_shape(AtomMn{}, cute::Shape<Dv, Bc, Stages>{},
                                                cute::Step<cute::_2, cute::_1, cute::_3>{}));
  using TiledMmaQk = decltype(cute::make_tiled_mma(wgmma_qk<Element, kBc, kHeadDim>()));
  using TiledMmaPv = decltype(cute::make_tiled_mma(
      cute::GMMA::rs_op_selector<Element, Element, float, cute::Shape<Rows, Dv, Bc>,
                                 cute::GMMA::Major::K, cute::GMMA::Major::MN>()));

  // Operands in SMEM as the MMA's descriptors: (MMA, MMA_M or MMA_N, MMA_K); K, V with a stage.
  __device__ static auto operand_q(Element* sQ) {
    const auto mma = TiledMmaQk{}.get_slice(0);  // a descriptor is the same for every thread
    return mma.make_fragment_A(mma.partition_A(tile(sQ, LayoutQ{})));
  }
  __device__ static auto operand_k(Element* sK) {
    const auto mma = TiledMmaQk{}.get_slice(0);
    return mma.make_fragment_B(mma.partition_B(tile(sK, LayoutK{})));
  }
  __device__ static auto operand_v(Element* sV) {
    const auto mma = TiledMmaPv{}.get_slice(0);
    return mma.make_fragment_B(mma.partition_B(tile(sV, LayoutVt{})));
  }

  // Accumulators in registers, (MMA, MMA_M, MMA_N), and the coordinates of a thread's elements.
  // Coordinates are signed or unsigned as `thread` is.
  using ShapeS = cute::Shape<Rows, Bc>;
  using ShapeO = cute::Shape<Rows, Dv>;
  __device__ static auto scores() { return cute::partition_fragment_C(TiledMmaQk{}, ShapeS{}); }
  __device__ static auto output() { return cute::partition_fragment_C(TiledMmaPv{}, ShapeO{}); }
  __device__ static auto score_coordinates(auto thread) {
    return TiledMmaQk{}.get_slice(thread).partition_C(cute::make_identity_tensor(ShapeS{}));
  }
  __device__ static auto output_coordinates(auto thread) {
    return TiledMmaPv{}.get_slice(thread).partition_C(cute::make_identity_tensor(ShapeO{}));
  }

  template <typename Layout>
  __device__ static auto tile(Element* smem, Layout layout) {
    return cute::make_tensor(cute::make_smem_ptr(smem), layout);
  }
};

// Views an accumulator's registers or coordinates as (rows of this thread, its columns).
template <typename TiledMma, typename Tensor>
__device__ auto by_rows(Tensor&& tensor) {
  return cute::make_tensor(tensor.data(), rows_by_columns<TiledMma>(tensor.layout()));
}

// Combines a value over the lanes that hold one row of the accumulator.
template <typename TiledMma, typename Op>
__device__ float row_reduce(float value, Op op) {
  constexpr RowLanes kLanes = row_lanes<TiledMma>();
#pragma unroll
  for (int offset = kLanes.first; offset < kLanes.first * kLanes.count; offset *= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The running statistics of a thread's rows: m, the maxima of the raw scores, and l, the sums over
// this thread's columns alone.
template <int kRows>
struct RowState {
  float m[kRows];
  float l[kRows];

  __device__ RowState() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      m[i] = kMinusInf;
      l[i] = 0.0f;
    }
  }
};

// Scores of keys that a row does not see become -infinity. The tile begins at row `row0` and key
// `key0`; `cS` gives each register's (row, key) within it.
template <typename TensorS, typename TensorC>
__device__ void mask(TensorS& rS, const TensorC& cS, const KeyRange& keys, int row0, int key0) {
#pragma unroll
  for (int i = 0; i < cute::size<0>(rS); ++i) {
    const int limit = keys.limit(row0 + cute::get<0>(cS(i, 0))) - key0;
#pragma unroll
    for (int j = 0; j < cute::size<1>(rS); ++j) {
      const int key = cute::get<1>(cS(i, j));  // signed: the limit may be negative
      rS(i, j) = key < limit ? rS(i, j) : kMinusInf;
    }
  }
}

// Returns `value`, and makes the compiler compute `earlier` first.
__device__ __forceinline__ float after(float value, float earlier) {
  asm("{.reg .f32 t; min.f32 t, %1, 0fFF800000; max.f32 %0, %0, t;}" : "+f"(value) : "f"(earlier));
  return value;
}

template <typename TiledMma>
__device__ float row_max(float m) {
  return row_reduce<TiledMma>(m, [](float a, float b) { return fmaxf(a, b); });
}

template <typename TiledMma>
__device__ float row_sum(float l) {
  return row_reduce<TiledMma>(l, [](float a, float b) { return a + b; });
}

// The maximum of m and this thread's columns of row i of S.
template <typename TensorS>
__device__ float max_with_row(float m, const TensorS& rS, int i) {
#pragma unroll
  for (int j = 0; j < cute::size<1>(rS); ++j) {
    m = fmaxf(m, rS(i, j));
  }
  return m;
}

// Row i of S becomes P = exp2(S * scale_log2 - reference), and P's sum is added to l.
template <typename TensorS>
__device__ void exponentials(TensorS& rS, int i, float scale_log2, float reference, float& l) {
#pragma unroll
  for (int j = 0; j < cute::size<1>(rS); ++j) {
    rS(i, j) = exp2_approx(fmaf(rS(i, j), scale_log2, -reference));
    l += rS(i, j);
  }
}

// One step of the online softmax: S (rows, keys) becomes P = exp2((S - m) * scale_log2) under the
// new maxima m, and l is scaled to them. The caller must still scale O by `correction`. A row that
// has seen no key keeps m = -infinity and P = 0. after() orders the work: a row's maximum is
// searched while the exponentials of the row before are computed. Otherwise ptxas searches all
// maxima first, while the unit of exponentials idles. Short rows are left to ptxas.
template <typename TiledMma, int kRows, typename TensorS>
__device__ void softmax_step(TensorS& rS, RowState<kRows>& state, float scale_log2,
                             float (&correction)[kRows]) {
  constexpr bool kInOrder = decltype(cute::size<1>(rS))::value >= 32;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float m = kInOrder && i > 0 ? after(state.m[i], state.m[i - 1]) : state.m[i];
    const float m_new = row_max<TiledMma>(max_with_row(m, rS, i));
    const float reference = m_new == kMinusInf ? 0.0f : m_new * scale_log2;
    correction[i] = exp2_approx(fmaf(state.m[i], scale_log2, -reference));
    state.m[i] = m_new;
    state.l[i] *= correction[i];
    exponentials(rS, i, scale_log2, reference, state.l[i]);
  }
}

// Scales each row of O by its factor.
template <int kRows, typename TensorO>
__device__ void scale_rows(TensorO& rO, const float (&factor)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < cute::size<1>(rO); ++j) {
      rO(i, j) *= factor[i];
    }
  }
}

// Rounds two values to CuTe's bfloat16_t or half_t, into one word.
template <typename Element>
__device__ std::uint32_t pack_x2(float low, float high) {
  return cute::is_same_v<Element, cute::bfloat16_t> ? pack_bf16x2(low, high)
                                                    : pack_fp16x2(low, high);
}

// Rounds an accumulator's registers to 16 bits, in order and in pairs.
template <typename TensorFrom, typename TensorTo>
__device__ void round_to_16_bits(const TensorFrom& from, TensorTo& to) {
  auto pairs = cute::recast<std::uint32_t>(to);
#pragma unroll
  for (int i = 0; i < cute::size(pairs); ++i) {
    pairs(i) = pack_x2<typename TensorTo::value_type>(from(2 * i), from(2 * i + 1));
  }
}

// At the end, O becomes O / l (0 for rows that saw no key), and each row's LSE is stored.
template <typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void normalize(const AttentionParams& p, const TileWalk& walk, int row0, TensorO& rO,
                          const TensorC& cO, const RowState<kRows>& state) {
  float inverse_l[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float l = row_sum<TiledMma>(state.l[i]);
    inverse_l[i] = l == 0.0f ? 0.0f : 1.0f / l;
    const int row = row0 + cute::get<0>(cO(i, 0));
    if (p.lse != nullptr && cute::get<1>(cO(i, 0)) == 0 && row < p.q_len) {
      *row_pointer<float>(p.lse, p.lse_stride, walk.batch, row, walk.head) =
          log_sum_exp(state.m[i], l, p.scale);
    }
  }
  scale_rows(rO, inverse_l);
}

}  // namespace tilewright::cuda
