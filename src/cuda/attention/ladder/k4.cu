// K4.2: both products on tensor cores, P handed over in registers (rung k4).
//
// New here: the online softmax works on WGMMA's accumulator where it lies. Which registers form a
// row, and which lanes share it, is read off the MMA's TV layouts (wgmma_layout.cuh); P becomes the
// A operand of P V in the same registers, rounded to BF16. The sum of a row is completed once, at
// the end.
//
// Source    the ladder's seed and its companion, "K4.2"; PTX ISA, wgmma.mma_async.
// Tiles     Br = Bc = 64; 128 threads, one warpgroup; thread 0 also loads.
// SMEM      sQ 64 x D, sK and sV 5 x 64 x D BF16: 176 KB at D = 128, 88 KB at D = 64 (+ barriers).
// Registers 255 at most; per thread 32 for S, 16 for P, D / 2 for O.
//
//   thread 0     Q  KV0 KV1 KV2 KV3 KV4      KV5           KV6 ...
//   warpgroup    wait KV0: S = Q K^T | softmax | O += P V | sync | wait KV1: S = Q K^T | ...
//
// Layouts   all tiles with the 128-byte swizzle, 64 columns a copy. V lies in SMEM as it does in
//           GMEM, D contiguous; as the B operand (D, Bc) of P V that is MN-major.
// Limits    D = 64 or 128, BF16. Product and softmax take turns: each waits for the other.
// Worklog   docs/worklog/k4.md
#include "cuda/attention/launchers.hpp"
#include "cuda/attention/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_layout.cuh"

namespace tilewright::cuda {
namespace k4 {

using namespace cute;
using Element = bfloat16_t;

constexpr AttnConfig config(int head_dim) {
  return {.head_dim = head_dim, .br = 64, .bc = 64, .threads = 128, .stages = 5};
}

template <AttnConfig C>
struct Traits {
  using Br = Int<C.br>;
  using Bc = Int<C.bc>;
  using D = Int<C.head_dim>;
  using Stages = Int<C.stages>;
  using AtomK = GMMA::Layout_K_SW128_Atom<Element>;    // 8 rows x 64 columns, columns contiguous
  using AtomMn = GMMA::Layout_MN_SW128_Atom<Element>;  // the same bytes, transposed
  using LayoutQ = decltype(tile_to_shape(AtomK{}, Shape<Br, D>{}));
  using LayoutK = decltype(tile_to_shape(AtomK{}, Shape<Bc, D, Stages>{}));
  using LayoutVt = decltype(tile_to_shape(AtomMn{}, Shape<D, Bc, Stages>{}, Step<_2, _1, _3>{}));
  using TiledMmaQk =
      decltype(make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<Br, Bc, D>>()));
  using TiledMmaPv =
      decltype(make_tiled_mma(GMMA::rs_op_selector<Element, Element, float, Shape<Br, D, Bc>,
                                                   GMMA::Major::K, GMMA::Major::MN>()));
  static constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
};

template <AttnConfig C>
struct SharedStorage {
  alignas(1024) Element sQ[C.br * C.head_dim];            // (Br, D)
  alignas(1024) Element sK[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(1024) Element sV[C.stages][C.bc * C.head_dim];  // (Bc, D, stages)
  alignas(128) TmaBarrier q_full;
  TmaBarrier kv_full[C.stages];
};
static_assert(sizeof(SharedStorage<config(128)>) == 177 * 1024);

struct TensorMaps {
  CUtensorMap q, k, v;
};

// Asks for key tile `tile` of K and V; their barrier completes when both are there.
template <AttnConfig C>
__device__ void load_kv(SharedStorage<C>& shared, const TensorMaps& maps, const TileWalk& walk,
                        int tile, int stage) {
  constexpr int kBoxColumns = Traits<C>::kBoxColumns;
  TmaBarrier& full = shared.kv_full[stage];
  full.arrive_and_expect_tx(sizeof(shared.sK[0]) + sizeof(shared.sV[0]));
  tma_load_tile<C.bc, C.head_dim, kBoxColumns>(maps.k, full, shared.sK[stage], tile * C.bc,
                                               walk.kv_head, walk.batch);
  tma_load_tile<C.bc, C.head_dim, kBoxColumns>(maps.v, full, shared.sV[stage], tile * C.bc,
                                               walk.kv_head, walk.batch);
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

// The running statistics of the rows that a thread holds: maxima m of the raw scores, and l, the
// sums over this thread's columns alone.
template <int kRows>
struct RowState {
  float m[kRows];
  float l[kRows];
};

// One step of the online softmax. S (rows, keys) becomes P = exp2((S - m) * scale_log2) under the
// new maxima; O (rows, columns) and l are brought to them. A row without a visible key yet keeps
// m = -infinity and P = 0.
template <typename TiledMma, int kRows, typename TensorS, typename TensorO>
__device__ void online_softmax(TensorS& rS, TensorO& rO, RowState<kRows>& state, float scale_log2) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float m_new = state.m[i];
#pragma unroll
    for (int j = 0; j < size<1>(rS); ++j) {
      m_new = fmaxf(m_new, rS(i, j));
    }
    m_new = row_reduce<TiledMma>(m_new, [](float a, float b) { return fmaxf(a, b); });
    const float reference = m_new == kMinusInf ? 0.0f : m_new * scale_log2;
    const float correction = exp2_approx(fmaf(state.m[i], scale_log2, -reference));
    state.m[i] = m_new;
    state.l[i] *= correction;
#pragma unroll
    for (int j = 0; j < size<1>(rS); ++j) {
      rS(i, j) = exp2_approx(fmaf(rS(i, j), scale_log2, -reference));
      state.l[i] += rS(i, j);
    }
#pragma unroll
    for (int j = 0; j < size<1>(rO); ++j) {
      rO(i, j) *= correction;
    }
  }
}

// Scores of keys beyond the row's limit become -infinity. `cS` gives each register's (row, key).
template <typename TensorS, typename TensorC>
__device__ void mask(TensorS& rS, const TensorC& cS, const KeyRange& keys, int row0, int key0) {
#pragma unroll
  for (int i = 0; i < size<0>(rS); ++i) {
    const int limit = keys.limit(row0 + get<0>(cS(i, 0))) - key0;
#pragma unroll
    for (int j = 0; j < size<1>(rS); ++j) {
      const int key = get<1>(cS(i, j));  // signed: the limit may be negative
      rS(i, j) = key < limit ? rS(i, j) : kMinusInf;
    }
  }
}

// O / l to global memory in pairs of columns, and each row's LSE.
template <typename TiledMma, int kRows, typename TensorO, typename TensorC>
__device__ void finalize(const AttentionParams& p, const TileWalk& walk, const TensorO& rO,
                         const TensorC& cO, const RowState<kRows>& state) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float l = row_reduce<TiledMma>(state.l[i], [](float a, float b) { return a + b; });
    const int row = walk.row0 + get<0>(cO(i, 0));
    if (row >= p.q_len) {
      continue;
    }
    const float inverse_l = l > 0.0f ? 1.0f / l : 0.0f;
    auto* const out = row_pointer<Element>(p.o, p.o_stride, walk.batch, row, walk.head);
#pragma unroll
    for (int j = 0; j < size<1>(rO); j += 2) {
      *reinterpret_cast<std::uint32_t*>(out + get<1>(cO(i, j))) =
          pack_bf16x2(rO(i, j) * inverse_l, rO(i, j + 1) * inverse_l);
    }
    if (p.lse != nullptr && get<1>(cO(i, 0)) == 0) {
      *row_pointer<float>(p.lse, p.lse_stride, walk.batch, row, walk.head) =
          log_sum_exp(state.m[i], l, p.scale);
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(config(kHeadDim).threads, 1)
    k4(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
  constexpr AttnConfig C = config(kHeadDim);
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(smem);
  using T = Traits<C>;
  using Br = typename T::Br;
  using Bc = typename T::Bc;
  using D = typename T::D;
  const TileWalk walk = tile_walk(p, C, blockIdx.x);
  const bool loader = threadIdx.x == 0;

  if (loader) {
    shared.q_full.init(1);
    for (TmaBarrier& full : shared.kv_full) {
      full.init(1);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();  // the barriers are ready

  if (loader) {  // prefetch: Q and the first tiles
    shared.q_full.arrive_and_expect_tx(sizeof(shared.sQ));
    tma_load_tile<C.br, C.head_dim, T::kBoxColumns>(maps.q, shared.q_full, shared.sQ, walk.row0,
                                                    walk.head, walk.batch);
    for (int tile = 0; tile < C.stages && tile < walk.kv_tiles; ++tile) {
      load_kv(shared, maps, walk, tile, tile);
    }
  }

  const Tensor sQ = make_tensor(make_smem_ptr(shared.sQ), typename T::LayoutQ{});
  const Tensor sK = make_tensor(make_smem_ptr(shared.sK[0]), typename T::LayoutK{});
  const Tensor sVt = make_tensor(make_smem_ptr(shared.sV[0]), typename T::LayoutVt{});
  typename T::TiledMmaQk mma_qk;
  typename T::TiledMmaPv mma_pv;
  const auto thread_qk = mma_qk.get_slice(threadIdx.x);
  const auto thread_pv = mma_pv.get_slice(threadIdx.x);
  const Tensor tSrQ = thread_qk.make_fragment_A(thread_qk.partition_A(sQ));   // (MMA,MMA_M,MMA_K)
  const Tensor tSrK = thread_qk.make_fragment_B(thread_qk.partition_B(sK));   // (..., stages)
  const Tensor tOrV = thread_pv.make_fragment_B(thread_pv.partition_B(sVt));  // (..., stages)

  // Accumulators as the MMA sees them, as (rows, columns), and the coordinates of their registers.
  Tensor tSrS = partition_fragment_C(mma_qk, Shape<Br, Bc>{});  // (MMA,MMA_M,MMA_N)
  Tensor tOrO = partition_fragment_C(mma_pv, Shape<Br, D>{});   // (MMA,MMA_M,MMA_N)
  const auto by_rows_qk = [](auto layout) {
    return rows_by_columns<typename T::TiledMmaQk>(layout);
  };
  const auto by_rows_pv = [](auto layout) {
    return rows_by_columns<typename T::TiledMmaPv>(layout);
  };
  Tensor rS = make_tensor(tSrS.data(), by_rows_qk(tSrS.layout()));  // (rows, keys)
  Tensor rO = make_tensor(tOrO.data(), by_rows_pv(tOrO.layout()));  // (rows, columns)
  const Tensor tScS = thread_qk.partition_C(make_identity_tensor(Shape<Br, Bc>{}));
  const Tensor tOcO = thread_pv.partition_C(make_identity_tensor(Shape<Br, D>{}));
  const Tensor cS = make_tensor(tScS.data(), by_rows_qk(tScS.layout()));
  const Tensor cO = make_tensor(tOcO.data(), by_rows_pv(tOcO.layout()));

  constexpr int kRows = size<0>(rS);
  static_assert(size<0>(rO) == kRows, "both accumulators hold the same rows");
  RowState<kRows> state;
  for (int i = 0; i < kRows; ++i) {
    state.m[i] = kMinusInf;
    state.l[i] = 0.0f;
  }
  clear(tOrO);
  const KeyRange keys(p);
  const float scale_log2 = scale_to_log2(p.scale);
  shared.q_full.wait(0);

  RingPosition<C.stages> ring;
  for (int tile = 0; tile < walk.kv_tiles; ++tile, ring.advance()) {
    shared.kv_full[ring.stage].wait(ring.phase);

    wgmma<false>(mma_qk, tSrQ, tSrK(_, _, _, ring.stage), tSrS);
    if (tile >= walk.full_tiles) {
      mask(rS, cS, keys, walk.row0, tile * C.bc);
    }
    online_softmax<typename T::TiledMmaQk>(rS, rO, state, scale_log2);

    Tensor rP = make_tensor_like<Element>(tSrS);  // P in C's order of registers ...
#pragma unroll
    for (int i = 0; i < size(rP); ++i) {
      rP(i) = static_cast<Element>(tSrS(i));
    }
    const Tensor tOrP = make_tensor(
        rP.data(), c_registers_of_a<typename T::TiledMmaQk, typename T::TiledMmaPv>());  // ... as A
    wgmma<true>(mma_pv, tOrP, tOrV(_, _, _, ring.stage), tOrO);

    __syncthreads();  // nobody reads this stage any more
    if (loader && tile + C.stages < walk.kv_tiles) {
      load_kv(shared, maps, walk, tile + C.stages, ring.stage);
    }
  }
  finalize<typename T::TiledMmaPv>(p, walk, rO, cO, state);
}

}  // namespace k4

void launch_k4(const AttentionParams& p, Stream stream) {
  dispatch_head_dim<64, 128>(p.head_dim, [&]<int kHeadDim>() {
    constexpr AttnConfig kConfig = k4::config(kHeadDim);
    const auto map = [&](const void* base, int seqlen, int heads, const OuterStrides& stride) {
      return encode_tensor_map(base, tile_map_spec(p.batch, seqlen, heads, kHeadDim, stride,
                                                   kConfig.bc, TmaSwizzle::b128));
    };
    const k4::TensorMaps maps{.q = map(p.q, p.q_len, p.heads, p.q_stride),
                              .k = map(p.k, p.kv_len, p.kv_heads, p.k_stride),
                              .v = map(p.v, p.kv_len, p.kv_heads, p.v_stride)};
    launch<k4::k4<kHeadDim>>(tile_count(p, kConfig), kConfig.threads,
                             sizeof(k4::SharedStorage<kConfig>), stream, p, maps);
  });
}

}  // namespace tilewright::cuda
