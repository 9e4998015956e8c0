// Stores a warpgroup's rows of O from its accumulator, and the rows' statistics.
#pragma once

#include "cuda/attention/flash/lazy_softmax.cuh"
#include "cuda/attention/flash/work.cuh"
#include "cuda/attention/wgmma_tiles.cuh"

namespace tilewright::cuda {

// A 4 x 4 transpose between the four lanes of a quad. Each lane comes with one word w[i] of each
// piece i; afterwards lane i holds the four words of piece i, in the lanes' order.
__device__ __forceinline__ uint4 transpose_in_quad(const std::uint32_t (&w)[4]) {
  constexpr std::uint32_t kAll = 0xffffffffu;
  const bool is_odd = threadIdx.x & 1;
  const bool is_upper = threadIdx.x & 2;
  // Neighbours exchange words of pieces (0, 1) and (2, 3).
  const std::uint32_t got0 = __shfl_xor_sync(kAll, is_odd ? w[0] : w[1], 1);
  const std::uint32_t got1 = __shfl_xor_sync(kAll, is_odd ? w[2] : w[3], 1);
  const uint2 a = is_odd ? uint2{got0, w[1]} : uint2{w[0], got0};
  const uint2 b = is_odd ? uint2{got1, w[3]} : uint2{w[2], got1};
  // The quad's halves exchange pairs of words.
  const std::uint32_t got2 = __shfl_xor_sync(kAll, is_upper ? a.x : b.x, 2);
  const std::uint32_t got3 = __shfl_xor_sync(kAll, is_upper ? a.y : b.y, 2);
  return is_upper ? uint4{got2, got3, b.x, b.y} : uint4{a.x, a.y, got2, got3};
}

// A row's statistics in natural units: m, its maximum or another reference; l, the sum of exp(s -
// m); and the factor by which sums taken under an earlier reference must be scaled.
struct RowResult {
  float m;
  float l;
  float rescale;
};

// The row's statistics with its maximum `m` as the reference.
__device__ inline RowResult under_maximum(const RowResult& row, float m) {
  const float rescale = m == kMinusInf ? 1.0f : exp2_approx((row.m - m) * kLog2e);
  return {.m = m, .l = row.l * rescale, .rescale = row.rescale * rescale};
}

// The row's statistics with its sink, which is one more score with a value of 0. An infinite sink
// has all the weight; a NaN makes the row's results NaN.
__device__ inline RowResult with_sink(const RowResult& row, float sink) {
  const float m_seen = row.l == 0.0f ? kMinusInf : row.m;
  const float m_new = m_seen > sink ? m_seen : sink;
  const float reference = m_new == kMinusInf ? 0.0f : m_new;
  const float rescale = exp2_approx((m_seen - reference) * kLog2e);
  const float weight = sink == -kMinusInf ? 1.0f : exp2_approx((sink - reference) * kLog2e);
  return {.m = m_new, .l = fmaf(row.l, rescale, weight), .rescale = row.rescale * rescale};
}

__device__ inline RowResult row_result(const AttentionParams& p, int head, float m, float l) {
  const RowResult result{.m = m, .l = l, .rescale = 1.0f};
  return p.sinks ? with_sink(result, p.sinks[head * p.sinks_stride]) : result;
}

__device__ inline bool wants_statistics(const AttentionParams& p) {
  return p.lse != nullptr || p.row_max != nullptr;
}

// Stores those of LSE, m and l that the caller asks for. fmaxf drops a NaN, but a sum keeps it: l
// tells whether the row has one.
__device__ inline void store_statistics(const AttentionParams& p, int batch, int row, int head,
                                        const RowResult& result) {
  if (p.lse != nullptr) {
    *row_pointer<float>(p.lse, p.lse_stride, batch, row, head) =
        result.l == 0.0f ? kMinusInf : result.m + logf(result.l);
  }
  if (p.row_max != nullptr) {
    *row_pointer<float>(p.row_max, p.row_max_stride, batch, row, head) =
        isnan(result.l) ? result.l : result.m;
    *row_pointer<float>(p.row_sum, p.row_sum_stride, batch, row, head) = result.l;
  }
}

// Finishes a tile's rows while their last P V still runs: stores their statistics and computes the
// factor that O must be scaled by (1 / l if normalised). Both rows of a thread take each step
// together and without branches: steps are mostly latency, which short sequences feel.
template <typename Element, typename TiledMma, int kRows, typename TensorC>
__device__ void finish_rows(const AttentionParams& p, const FlashTile& tile, int row0,
                            const TensorC& cO, const LazyRows<kRows>& rows, float scale_log2,
                            float (&factor)[kRows]) {
  float m[kRows];
  float l[kRows];
  RowResult result[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    m[i] = row_max<TiledMma>(rows.m[i]);
    l[i] = row_sum<TiledMma>(rows.l[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    result[i] = {.m = rows.reference[i] * (1.0f / kLog2e),
                 .l = l[i],
                 .rescale = rounding_of_largest<Element>(rows, i, m[i], l[i], scale_log2)};
  }
  if (p.row_max != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      result[i] = under_maximum(result[i], m[i] * (scale_log2 / kLog2e));
    }
  }
  if (p.sinks != nullptr) {
    const float sink = p.sinks[tile.head * p.sinks_stride];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      result[i] = with_sink(result[i], sink);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float divisor = p.row_max == nullptr ? result[i].l : 1.0f;
    const float quotient = __fdividef(result[i].rescale, divisor);
    factor[i] = divisor == 0.0f ? 0.0f : quotient;
  }
  if (wants_statistics(p) && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row0 + cute::get<0>(cO(i, 0));
      if (row < tile.q_len) {
        store_statistics(p, tile.out_batch, tile.q_start + row, tile.head, result[i]);
      }
    }
  }
}

// The slots in SMEM where consumers put O for the thread that stores it by TMA. Each consumer has a
// slot, or they share one, which passes from one to the next. A position counts the tiles that are
// stored by TMA.
template <typename Element, typename Tiles, int kConsumers, int kSlots>
struct OutputSlots {
  static_assert(kSlots == 1 || kSlots == kConsumers);
  static constexpr bool kIsShared = kSlots < kConsumers;
  static constexpr int kElements = cute::cosize_v<typename Tiles::LayoutO>;
  alignas(1024) Element sO[kSlots][kElements];        // (64, Dv), swizzled
  cutlass::arch::ClusterBarrier full[kConsumers];     // a consumer's O is there
  cutlass::arch::ClusterBarrier granted[kConsumers];  // a consumer may write to its slot

  __device__ void init() {
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      full[consumer].init(kWarpgroupThreads / 32);
      granted[consumer].init(1);
    }
  }

  // By the storing thread: O of a consumer, and that it has left its slot.
  __device__ Element* wait(int consumer, const RingPosition<1>& at) {
    full[consumer].wait(at.phase);
    return slot(consumer);
  }
  __device__ void release(int consumer) {
    granted[kIsShared ? (consumer + 1) % kConsumers : consumer].arrive();
  }

  // By a consumer: O in 16 bits. At first each has its slot, or the first one has it.
  template <typename TensorO>
  __device__ void put(const TensorO& tOrO, int consumer, const RingPosition<1>& at) {
    using namespace cute;
    const bool has_it_at_first = !kIsShared || consumer == 0;
    Tensor rO = make_tensor_like<Element>(tOrO);
    round_to_16_bits(tOrO, rO);
    const auto copier =
        make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, typename Tiles::TiledMmaPv{});
    const auto thread_copy = copier.get_slice(threadIdx.x % kWarpgroupThreads);
    granted[consumer].wait(at.phase ^ has_it_at_first);
    copy(copier, thread_copy.retile_S(rO),
         thread_copy.partition_D(Tiles::tile(slot(consumer), typename Tiles::LayoutO{})));
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      full[consumer].arrive();
    }
  }

 private:
  __device__ Element* slot(int consumer) { return sO[kIsShared ? 0 : consumer]; }
};

// Can TMA store this tile's O? It would also store rows beyond a packed sequence's end.
template <int kBr>
__device__ bool goes_by_tma(const AttentionParams& p, const FlashTile& tile) {
  return p.row_max == nullptr && (p.cu_seqlens_q == nullptr || tile.row0 + kBr <= tile.q_len);
}

// Stores rows of O from registers: in FP32 if un-normalised, else in 16 bits.
template <typename Element, typename TiledMma, typename TensorO, typename TensorC>
__device__ void store_rows(const AttentionParams& p, const FlashTile& tile, int row0,
                           const TensorO& rO, const TensorC& cO) {
  using namespace cute;
  constexpr int kColumns = decltype(size<1>(rO))::value;
  constexpr RowLanes kLanes = row_lanes<TiledMma>();
  static_assert(kLanes.first == 1 && kLanes.count == 4 && kColumns % 8 == 0,
                "a quad holds a row, in pieces of eight columns, two a lane");
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < size<0>(rO); ++i) {
    const int in_sequence = row0 + get<0>(cO(i, 0));
    const bool exists = in_sequence < tile.q_len;
    const int row = tile.q_start + in_sequence;
    if (p.row_max != nullptr) {
      auto* const out = row_pointer<float>(p.o, p.o_stride, tile.out_batch, row, tile.head);
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        if (exists) {
          *reinterpret_cast<float2*>(out + 4 * j + 2 * lane) = float2{rO(i, j), rO(i, j + 1)};
        }
      }
    } else {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, tile.out_batch, row, tile.head);
#pragma unroll
      for (int j = 0; j < kColumns; j += 8) {
        std::uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          words[k] = pack_x2<Element>(rO(i, j + 2 * k), rO(i, j + 2 * k + 1));
        }
        const uint4 piece = transpose_in_quad(words);
        if (exists) {
          *reinterpret_cast<uint4*>(out + 4 * j + 8 * lane) = piece;
        }
      }
    }
  }
}

}  // namespace tilewright::cuda
