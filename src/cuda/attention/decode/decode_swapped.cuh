// Decode with operands swapped: keys are the rows of both GEMMs, and queries their columns (kernel
// decode_swapped).
//
// A warpgroup's MMA has 64 rows and as few as eight columns. A decoding sequence has few queries to
// a KV head, and many keys; so keys take the rows. No tensor core and no exponential works on
// padding, a tile costs each warp some hundred instructions, and O is small enough to be merged at
// once.
//
//   S^T (64 keys, rows) = K Q^T        P^T = exp(S^T - m)        O^T (Dv, rows) += V^T P^T
//
// Source    CUTLASS's word for it is swap AB; FlashDecoding; stream-K (Osama et al., 2023).
// Tiles     8, 16, 32 or 64 rows; Bc = 64 keys. Two warpgroups compute every other tile each.
// SMEM      stages x Bc x (D + Dv) x 2 bytes; Q in 1 or 2 stages; P^T of both; in clusters, a slice
//           of O.
// Registers 224 for a thread that computes, 56 for one that loads. rows * Dv / 128 hold O, a
//           quarter of rows each S, m and l.
//
//   warps 0 to 3      tile 0: S^T | max | P^T | O^T | tile 2 ...
//   warps 4 to 7      tile 1: S^T | max | P^T | O^T | tile 3 ...
//   warp 8            finds the block's parts, from the lengths in memory (walk.cuh)
//   warps 9 to 11     load K, V (load.cuh) and Q
//
// Maxima and sums over keys are those of a thread's two, of eight lanes, and of four warps, which
// meet in SMEM. At a part's end each warpgroup leaves O where its last tile was.
//
// Limits    16-bit caches that TMA can load: pages of 16 or 32 rows, or of a multiple of 64, or
// none. Worklog   docs/worklog/decode.md
#pragma once

#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/decode/block.cuh"
#include "cuda/attention/decode/seen_keys.cuh"
#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {
namespace decode {

// The GEMMs and their operands in SMEM. V lies there as in memory, Dv contiguous: as A that is
// MN-major.
template <typename Config>
struct SwappedTiles {
  using Element = typename Config::Element;
  using Keys = cute::Int<kDecodeTileKeys>;
  using Rows = cute::Int<Config::kRows>;
  using D = cute::Int<Config::C.head_dim>;
  using Dv = cute::Int<Config::C.value_dim>;
  using AtomK = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using AtomMn = cute::GMMA::Layout_MN_SW128_Atom<Element>;
  using LayoutK = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Keys, D>{}));
  using LayoutQ = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, D>{}));
  using LayoutP = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, Keys>{}));
  using LayoutVt = decltype(cute::tile_to_shape(AtomMn{}, cute::Shape<Dv, Keys>{},
                                                cute::Step<cute::_2, cute::_1>{}));
  using MmaQk = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, cute::Shape<Keys, Rows, D>>()));
  using MmaPv = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, cute::Shape<cute::_64, Rows, Keys>,
                                 cute::GMMA::Major::MN, cute::GMMA::Major::K>()));

  template <typename Mma, typename Layout>
  __device__ static auto operand_a(const void* smem, Layout layout) {
    const auto mma = Mma{}.get_slice(0);  // a descriptor is the same for every thread
    return mma.make_fragment_A(mma.partition_A(tile(smem, layout)));
  }
  template <typename Mma, typename Layout>
  __device__ static auto operand_b(const void* smem, Layout layout) {
    const auto mma = Mma{}.get_slice(0);
    return mma.make_fragment_B(mma.partition_B(tile(smem, layout)));
  }
  __device__ static auto scores() {
    return cute::partition_fragment_C(MmaQk{}, cute::Shape<Keys, Rows>{});
  }
  __device__ static auto output() {
    return cute::partition_fragment_C(MmaPv{}, cute::Shape<Dv, Rows>{});
  }

 private:
  template <typename Layout>
  __device__ static auto tile(const void* smem, Layout layout) {
    return cute::make_tensor(cute::make_smem_ptr(static_cast<const Element*>(smem)), layout);
  }
};

// Stores 8 x 8 matrices of 16-bit values, transposed: lane i has the address of what is column
// i % 8 of matrix i / 8 in the registers.
template <int kCount>
__device__ __forceinline__ void store_transposed(std::uint32_t address,
                                                 const std::uint32_t (&r)[kCount]) {
  if constexpr (kCount == 4) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
  } else {
    static_assert(kCount == 2);
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(r[0]), "r"(r[1])
                 : "memory");
  }
}

// The consumer: two warpgroups. A thread has keys 16 w + g and 16 w + g + 8 of a tile, where w is
// its warp of four and g its lane / 4, and the rows row_of_column(c). Of O it has the same rows.
template <typename Config>
class SwappedCompute {
 public:
  using Element = typename Config::Element;
  using Form = SwappedForm<Config>;
  using Tiles = SwappedTiles<Config>;
  static constexpr int kMost = Form::kGroups;
  static constexpr int kTileWarps = 4;  // that read a tile
  static constexpr int kLoadWarps = 3;  // of K, of V and of Q
  static constexpr int kConsumerRegisters = 224;
  static constexpr int kLoadRegisters = 56;

  __device__ static void set_up(SharedStorage<Config>& shared) {
    shared.compute.queries.init(Config::kConsumerWarps);
  }

  __device__ SwappedCompute(SharedStorage<Config>& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  // Computes a part's tiles. Each warpgroup's last one stays as it is until release().
  __device__ __forceinline__ void run(const Part& part) {
    tiles_ = part.tiles.end - part.tiles.first;
    cute::clear(o_);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m_[c] = kMinusInf;
      l_[c] = 0.0f;
    }
    if (tiles_ == 0) {
      return;
    }
    const float scale_log2 = p_.softcap > 0.0f ? kLog2e : scale_to_log2(p_.scale);
    shared_.compute.queries.wait(at_q_);
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      before_ = last_;
      last_ = at_.stage;
      if (i % Form::kGroups == group_) {
        compute_tile(part, part.tiles.first + i, i + Form::kGroups >= tiles_, scale_log2);
      }
      at_.advance();
    }
    __syncwarp();
    shared_.compute.queries.release(at_q_);
    at_q_.advance();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m_[c] *= scale_log2 / kLog2e;
    }
  }

  __device__ void release() {
    if (tiles_ > 0) {
      cutlass::arch::fence_view_async_shared();  // before TMA writes where results were
      sync_consumer<Config>();                   // both warpgroups have merged
      if (group_ < tiles_) {
        const typename Config::Position at{.stage = own_last(), .phase = 0};
        shared_.k.release(at);
        shared_.v.release(at);
      }
    }
  }

  // Loads the parts' rows of Q. A warp calls it.
  __device__ static void load_queries(SharedStorage<Config>& shared, const Params& p,
                                      const Launch& launch, const TensorMaps& maps) {
    QueryPosition at;
    PartRing::Position at_part;
    while (true) {
      const Part& part = shared.parts.wait(at_part);
      if (part.is_end) {
        break;
      }
      if (part.tiles.first < part.tiles.end) {
        if (threadIdx.x % 32 == 0) {
          load_rows(shared, p, launch, maps.q, part, at);
        }
        at.advance();
      }
      __syncwarp();
      shared.parts.release(at_part);
      at_part.advance();
    }
  }

  // ---- What the warpgroups leave, for Finish

  __device__ static int rows_of(int rows, int) { return rows; }
  __device__ static int tile_row(int i, int) { return i; }
  __device__ int count() const { return min(tiles_, kMost); }

  __device__ void leave(int) const {
    if (tiles_ == 0) {
      return;
    }
    if (group_ < tiles_) {
      const auto sum = [](float a, float b) { return a + b; };
      float l[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        l[c] = over_lanes(l_[c], sum);
      }
      reduce(l, sum);  // all warps have read the tile
      leave_rows(l);
    }
    sync_consumer<Config>();
  }

  __device__ PieceSource source(int i, int q) const {
    const int group = (tiles_ - 1) % Form::kGroups;  // that has the part's last tile
    const auto& compute = shared_.compute;
    return {&compute.max[group][i],
            &compute.sum[group][i],
            reinterpret_cast<const float4*>(left_in(last_) + place(i, 4 * q)),
            &compute.max[1 - group][i],
            &compute.sum[1 - group][i],
            reinterpret_cast<const float4*>(left_in(before_) + place(i, 4 * q)),
            0,
            0};
  }

 private:
  static_assert(Form::kGroups == 2);
  static constexpr int kColumns = Config::kRows / 4;  // rows of this thread
  using QueryPosition = RingPosition<Form::kQueryStages>;

  __device__ int row_of_column(int c) const { return 8 * (c / 2) + 2 * t_ + c % 2; }

  // The stage of this warpgroup's last tile of the part.
  __device__ int own_last() const {
    return (tiles_ - 1) % Form::kGroups == group_ ? last_ : before_;
  }

  // Where a column of a row of O lies in the tile where it is left. The rows of neighbouring
  // threads lie in different banks.
  __device__ static int place(int row, int column) {
    return row * Config::C.value_dim + (column ^ (row & 6) * 4);
  }
  __device__ float* left_in(int stage) const {
    return reinterpret_cast<float*>(shared_.tiles[stage]);
  }

  __device__ void sync_group() const {
    constexpr std::uint32_t kFirstBarrier = 2;  // 1 is the consumer's
    cutlass::arch::NamedBarrier::sync(128, kFirstBarrier + group_);
  }

  __device__ static void load_rows(SharedStorage<Config>& shared, const Params& p,
                                   const Launch& launch, const CUtensorMap& map, const Part& part,
                                   const QueryPosition& at) {
    auto& compute = shared.compute;
    const int rows = launch.shape.tile_heads * launch.shape.tile_tokens;
    TmaBarrier& full =
        compute.queries.acquire(at, rows * Config::C.head_dim * static_cast<int>(sizeof(Element)));
    constexpr int kBox = 64;
#pragma unroll
    for (int column = 0; column < Config::C.head_dim; column += kBox) {
      cute::SM90_TMA_LOAD_4D::copy(
          &map, reinterpret_cast<std::uint64_t*>(&full),
          static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
          compute.q[at.stage] + column * Config::kRows, column, part.first_head,
          part.lengths.q_start + part.token0, p.packed_q.cu_seqlens != nullptr ? 0 : part.sequence);
    }
  }

  template <typename Op>
  __device__ static float over_lanes(float value, Op op) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }

  // Combines values, which the lanes of a row's column share, over the warpgroup's four warps.
  template <typename Op>
  __device__ __forceinline__ void reduce(float (&values)[kColumns], Op op) const {
    auto& reduced = shared_.compute.reduced[group_];
    if (g_ == 0) {
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        *reinterpret_cast<float2*>(&reduced[warp_][row_of_column(c)]) = {values[c], values[c + 1]};
      }
    }
    sync_group();
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      const auto of_warp = [&](int warp) {
        return *reinterpret_cast<const float2*>(&reduced[warp][row_of_column(c)]);
      };
      float2 all = of_warp(0);
#pragma unroll
      for (int warp = 1; warp < 4; ++warp) {
        const float2 its = of_warp(warp);
        all = {op(all.x, its.x), op(all.y, its.y)};
      }
      values[c] = all.x;
      values[c + 1] = all.y;
    }
  }

  // Computes tile j. With `is_last` it stays as it is.
  __device__ __forceinline__ void compute_tile(const Part& part, int j, bool is_last,
                                               float scale_log2) {
    const std::uint8_t* const tile_k = shared_.tiles[at_.stage];
    std::uint8_t* const tile_v = shared_.tiles[at_.stage] + Config::TileK::kTile_bytes;
    auto s = Tiles::scores();
    shared_.k.wait(at_);
    using MmaQk = typename Tiles::MmaQk;
    wgmma<false>(
        MmaQk{}, Tiles::template operand_a<MmaQk>(tile_k, typename Tiles::LayoutK{}),
        Tiles::template operand_b<MmaQk>(shared_.compute.q[at_q_.stage], typename Tiles::LayoutQ{}),
        s);
    if (!is_last) {
      shared_.k.release(at_);
    }
    auto rS = by_rows<MmaQk>(s);
    if (p_.softcap > 0.0f) {
      cuda::cap(rS, p_.scale, p_.softcap);
    }
    const int first = j * kDecodeTileKeys;
    const bool is_masked = first < part.whole_first || first + kDecodeTileKeys > part.whole_end;
    const std::uint32_t seen = is_masked ? seen_by_rows(part, first) : 0;
    if (is_masked) {
      mask(rS, seen);
    }
    weigh(rS, scale_log2);
    leave_weights(rS);
    shared_.v.wait(at_);
    if (is_masked) {
      clear_unseen(tile_v, seen);
    }
    cutlass::arch::fence_view_async_shared();
    sync_group();

    using MmaPv = typename Tiles::MmaPv;
    wgmma<true>(
        MmaPv{}, Tiles::template operand_a<MmaPv>(tile_v, typename Tiles::LayoutVt{}),
        Tiles::template operand_b<MmaPv>(shared_.compute.p[group_], typename Tiles::LayoutP{}), o_);
    if (!is_last) {
      shared_.v.release(at_);
    }
  }

  // Which of this warp's 16 keys of the tile that begins with key key0 a lane's rows see: its row
  // of the first 32, and of the next.
  __device__ std::uint32_t seen_by_rows(const Part& part, int key0) const {
    std::uint32_t seen = 0;
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < Config::kRows; row += 32) {
      seen |= seen_keys(p_, launch_, part, row, key0 + kStepKeys * warp_) << row / 32 * 16;
    }
    return seen;
  }

  // Scores of keys that a row does not see become -infinity.
  template <typename TensorS>
  __device__ __forceinline__ void mask(TensorS& rS, std::uint32_t seen) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = row_of_column(c);
      const std::uint32_t keys = __shfl_sync(0xffffffffu, seen, row) >> (c / 8 * 16 + g_);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rS(i, c) = keys & (1u << 8 * i) ? rS(i, c) : kMinusInf;
      }
    }
  }

  // One step of the online softmax: S becomes P = exp2((S - m) * scale_log2) under the new maxima
  // m; l, this thread's sums, and O are scaled to them. A row that has seen no key keeps
  // m = -infinity and P = 0.
  template <typename TensorS>
  __device__ __forceinline__ void weigh(TensorS& rS, float scale_log2) {
    float m[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m[c] = over_lanes(fmaxf(rS(0, c), rS(1, c)), [](float a, float b) { return fmaxf(a, b); });
    }
    reduce(m, [](float a, float b) { return fmaxf(a, b); });
    float correction[kColumns];
    bool moves = false;  // a row that has an O, whose reference moves
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m[c] = fmaxf(m[c], m_[c]);
      const float reference = m[c] == kMinusInf ? 0.0f : __fmul_rn(m[c], scale_log2);
      correction[c] = exp2_approx(__fmul_rn(m_[c], scale_log2) - reference);
      moves |= m[c] != m_[c] && m_[c] != kMinusInf;
      m_[c] = m[c];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rS(i, c) = exp2_approx(fmaf(rS(i, c), scale_log2, -reference));
      }
      l_[c] = l_[c] * correction[c] + (rS(0, c) + rS(1, c));
    }
    if (__any_sync(0xffffffffu, moves)) {
      auto rO = by_rows<typename Tiles::MmaPv>(o_);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < cute::size<0>(rO); ++i) {
          rO(i, c) *= correction[c];
        }
      }
    }
  }

  // P^T becomes an operand in SMEM: each of its rows has 64 keys, and the swizzle.
  template <typename TensorS>
  __device__ __forceinline__ void leave_weights(const TensorS& rS) {
    constexpr int kMatrices = Config::kRows == 8 ? 2 : 4;  // of 8 keys x 8 rows, at a time
    const int lane = threadIdx.x % 32;
    const int in_row = lane % 8;
    const int chunk = 2 * warp_ + lane / 8 % 2;  // of eight keys
    const std::uint32_t place = cute::cast_smem_ptr_to_uint(shared_.compute.p[group_]) +
                                (lane / 16 * 8 % Config::kRows + in_row) * 128 +
                                (chunk ^ in_row) * 16;
#pragma unroll
    for (int c = 0; c < kColumns; c += kMatrices) {
      std::uint32_t r[kMatrices];
#pragma unroll
      for (int k = 0; k < kMatrices; ++k) {
        const int column = c + k / 2 * 2;
        r[k] = pack_x2<Element>(rS(k % 2, column), rS(k % 2, column + 1));
      }
      store_transposed(place + c * 4 * 128, r);
    }
  }

  // Values of keys that no row sees become zeros: they may be NaN, or another tile's. Each warp
  // clears those of its 16 keys.
  __device__ void clear_unseen(std::uint8_t* tile, std::uint32_t seen) const {
    using Tile = typename Config::TileV;
    const std::uint32_t keys = __reduce_or_sync(0xffffffffu, seen | seen >> 16);
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < kStepKeys * Tile::kChunks; i += 32) {
      const int key = i / Tile::kChunks;
      if ((keys >> key & 1) == 0) {
        *reinterpret_cast<uint4*>(tile + Tile::offset(kStepKeys * warp_ + key, i % Tile::kChunks)) =
            uint4{};
      }
    }
  }

  // Leaves this warpgroup's O, m and l.
  __device__ __forceinline__ void leave_rows(const float (&l)[kColumns]) const {
    const auto rO = by_rows<typename Tiles::MmaPv>(o_);
    float* const own[2] = {left_in(own_last()) + place(2 * t_, 16 * warp_ + g_),
                           left_in(own_last()) + place(2 * t_, 16 * warp_ + 8 + g_)};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int below = c / 2 * 8 + c % 2;  // row 2 t
#pragma unroll
      for (int i = 0; i < cute::size<0>(rO); ++i) {
        own[i % 2][below * Config::C.value_dim + i / 2 * 64] = rO(i, c);
      }
      if (warp_ == 0 && g_ == 0) {
        shared_.compute.max[group_][row_of_column(c)] = m_[c];
        shared_.compute.sum[group_][row_of_column(c)] = l[c];
      }
    }
  }

  SharedStorage<Config>& shared_;
  const Params& p_;
  const Launch& launch_;
  const int group_ = static_cast<int>(threadIdx.x) / 128;
  const int warp_ = static_cast<int>(threadIdx.x) / 32 % 4;
  const int g_ = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t_ = static_cast<int>(threadIdx.x) % 4;
  typename Config::Position at_;
  QueryPosition at_q_;
  decltype(Tiles::output()) o_;
  float m_[kColumns];
  float l_[kColumns];
  int tiles_ = 0;   // of the part
  int last_ = 0;    // the stage of its last tile
  int before_ = 0;  // and of the one before
};

template <int kIndex, typename Element>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element, Element>::kThreads, 1)
    decode_swapped(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
                   const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element, Element>;
  run_block<Config, SwappedCompute<Config>>(p, maps, launch);
}

}  // namespace decode
}  // namespace tilewright::cuda
