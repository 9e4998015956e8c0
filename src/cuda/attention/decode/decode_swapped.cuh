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
// SMEM      stages x Bc x (D + Dv) of the caches' type; Q in 1 or 2 stages; P^T of both; in
// clusters, a slice
//           of O.
// Registers 216 for a thread that computes, 72 for one that loads. rows * Dv / 128 hold O, a
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
// E4M3      K and V are widened in registers, as operand A (swapped_operands.cuh); at most 32 rows.
//           Q is widened on its way to SMEM.
// Limits    Caches that TMA can load: whole, or in pages of 16, 32 or a multiple of 64 rows.
// Worklog   docs/worklog/decode.md
#pragma once

#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/decode/block.cuh"
#include "cuda/attention/decode/seen_keys.cuh"
#include "cuda/attention/decode/swapped_operands.cuh"

namespace tilewright::cuda {
namespace decode {

// A thread's place among the consumer's two warpgroups. It has keys 16 warp + g and 16 warp + g + 8
// of a tile, and the rows row(c) of S^T and O^T, whose columns they are.
struct SwappedPlace {
  int group = static_cast<int>(threadIdx.x) / 128;
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;
  int t = static_cast<int>(threadIdx.x) % 4;

  __device__ int row(int c) const { return 8 * (c / 2) + 2 * t + c % 2; }

  // A barrier of the warpgroup.
  __device__ void sync_group() const {
    constexpr std::uint32_t kFirstBarrier = 2;  // 1 is the consumer's
    cutlass::arch::NamedBarrier::sync(128, kFirstBarrier + group);
  }

  // Combines a value over the lanes that have a row's keys.
  template <typename Op>
  __device__ static float over_lanes(float value, Op op) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }

  // Combines values of rows, the same in all those lanes, over the warpgroup's four warps.
  template <int kColumns, int kRows, typename Op>
  __device__ __forceinline__ void over_warps(float (&reduced)[4][kRows], float (&values)[kColumns],
                                             Op op) const {
    if (g == 0) {
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        *reinterpret_cast<float2*>(&reduced[warp][row(c)]) = {values[c], values[c + 1]};
      }
    }
    sync_group();
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      const auto of_warp = [&](int its) {
        return *reinterpret_cast<const float2*>(&reduced[its][row(c)]);
      };
      float2 all = of_warp(0);
#pragma unroll
      for (int its = 1; its < 4; ++its) {
        all = {op(all.x, of_warp(its).x), op(all.y, of_warp(its).y)};
      }
      values[c] = all.x;
      values[c + 1] = all.y;
    }
  }
};

// What a warpgroup has of the rows, from its tiles.
template <typename Config>
struct SwappedResult {
  static constexpr int kColumns = Config::kRows / 4;  // rows of a thread
  decltype(SwappedTiles<Config>::output()) o;
  float m[kColumns];
  float l[kColumns];  // of this thread's keys
};

// What the warpgroups leave, for Finish, where their last tiles of the part were.
template <typename Config>
struct SwappedLeft {
  using Tiles = SwappedTiles<Config>;
  static constexpr int kMost = SwappedForm<Config>::kGroups;
  static_assert(kMost == 2);

  SharedStorage<Config>& shared;
  SwappedPlace place;
  const SwappedResult<Config>& result;
  int tiles;        // of the part
  int last;         // the stage of its last tile
  int before;       // and of the one before
  float descale_v;  // of the whole sequence

  __device__ static int rows_of(int rows, int) { return rows; }
  __device__ static int tile_row(int i, int) { return i; }
  __device__ int count() const { return min(tiles, kMost); }

  // The warpgroup that has the part's last tile, and the stage of a warpgroup's last one.
  __device__ int last_group() const { return (tiles - 1) % kMost; }
  __device__ int stage_of(int group) const { return group == last_group() ? last : before; }

  __device__ void leave(int) const {
    if (tiles == 0) {
      return;
    }
    if (place.group < tiles) {
      const auto add = [](float a, float b) { return a + b; };
      constexpr int kColumns = SwappedResult<Config>::kColumns;
      float l[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        l[c] = SwappedPlace::over_lanes(result.l[c], add);
      }
      place.over_warps(shared.compute.reduced[place.group], l, add);  // all have read the tile
      leave_rows(l);
    }
    sync_consumer<Config>();
  }

  __device__ PieceSource source(int i, int q) const {
    const int group = last_group();
    const auto& compute = shared.compute;
    const auto piece = [&](int stage) {
      return reinterpret_cast<const float4*>(memory(stage) + offset(i, 4 * q));
    };
    return {
        &compute.max[group][i],     &compute.sum[group][i], piece(last), &compute.max[1 - group][i],
        &compute.sum[1 - group][i], piece(before),          0,           0};
  }

 private:
  // Where a column of a row of O lies. The rows of neighbouring threads lie in different banks.
  __device__ static int offset(int row, int column) {
    return row * Config::C.value_dim + (column ^ (row & 6) * 4);
  }
  __device__ float* memory(int stage) const {
    return reinterpret_cast<float*>(shared.tiles[stage]);
  }

  template <int kColumns>
  __device__ __forceinline__ void leave_rows(const float (&l)[kColumns]) const {
    const auto rO = by_rows<typename Tiles::MmaPv>(result.o);
    const auto& [group, warp, g, t] = place;
    float* const own[2] = {memory(stage_of(group)) + offset(2 * t, Tiles::column(warp, g, 0)),
                           memory(stage_of(group)) + offset(2 * t, Tiles::column(warp, g, 1))};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int below = c / 2 * 8 + c % 2;  // row 2 t
#pragma unroll
      for (int i = 0; i < cute::size<0>(rO); ++i) {
        own[i % 2][below * Config::C.value_dim + i / 2 * 64] =
            Config::kIsE4m3 ? rO(i, c) * descale_v : rO(i, c);
      }
      if (warp == 0 && g == 0) {
        shared.compute.max[group][place.row(c)] = result.m[c];
        shared.compute.sum[group][place.row(c)] = l[c];
      }
    }
  }
};

// The consumer: two warpgroups, each with every other tile.
template <typename Config>
class SwappedCompute {
 public:
  using Left = SwappedLeft<Config>;
  using Result = SwappedResult<Config>;
  static constexpr int kTileWarps = 4;  // that read a tile
  static constexpr int kLoadWarps = 3;  // of K, of V and of Q
  static constexpr int kConsumerRegisters = 216;
  static constexpr int kLoadRegisters = 72;
  static constexpr int kSetUpThreads = 32;

  __device__ static void set_up(SharedStorage<Config>& shared) {
    shared.compute.queries.init(Config::kConsumerWarps);
  }

  __device__ SwappedCompute(SharedStorage<Config>& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  // Computes a part's tiles. Each warpgroup's last one stays as it is until release().
  __device__ __forceinline__ Left run(const Part& part, Result& result) {
    const int tiles = part.tiles.end - part.tiles.first;
    cute::clear(result.o);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      result.m[c] = kMinusInf;
      result.l[c] = 0.0f;
    }
    if (tiles > 0) {
      compute(part, tiles, result);
    }
    return {.shared = shared_,
            .place = place_,
            .result = result,
            .tiles = tiles,
            .last = last_,
            .before = before_,
            .descale_v = Config::kIsE4m3 ? descale_of(p_.v_descale, part) : 1.0f};
  }

  __device__ void release(const Part&, const Left& left) {
    if (left.tiles > 0) {
      cutlass::arch::fence_view_async_shared();  // before TMA writes where results were
      sync_consumer<Config>();                   // both warpgroups have merged
      if (place_.group < left.tiles) {
        const typename Config::Position at{.stage = left.stage_of(place_.group), .phase = 0};
        shared_.k.release(at);
        shared_.v.release(at);
      }
    }
  }

  // Loads the parts' rows of Q. A warp calls it.
  __device__ static void load_queries(SharedStorage<Config>& shared, const Params& p,
                                      const Launch& launch) {
    auto& compute = shared.compute;
    QueryPosition at;
    PartRing::Position at_part;
    while (true) {
      const Part& part = shared.parts.wait(at_part);
      if (part.is_end) {
        break;
      }
      if (part.tiles.first < part.tiles.end) {
        compute.queries.wait_until_empty(at);
        load_query_rows<Config>(compute.q[at.stage], p, launch, part);
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        compute.queries.put(at);
        at.advance();
      }
      __syncwarp();
      shared.parts.release(at_part);
      at_part.advance();
    }
  }

 private:
  using Tiles = SwappedTiles<Config>;
  using Element = typename Config::Element;
  using QueryPosition = RingPosition<SwappedForm<Config>::kQueryStages>;
  static constexpr int kColumns = Result::kColumns;

  __device__ __forceinline__ void compute(const Part& part, int tiles, Result& result) {
    constexpr int kGroups = SwappedForm<Config>::kGroups;
    scale_ = scale_of<Config>(p_, part);
    const float scale_log2 = p_.softcap > 0.0f ? kLog2e : scale_to_log2(scale_);
    shared_.compute.queries.wait(at_q_);
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      before_ = last_;
      last_ = at_.stage;
      if (i % kGroups == place_.group) {
        compute_tile(part, part.tiles.first + i, i + kGroups >= tiles, scale_log2, result);
      }
      at_.advance();
    }
    __syncwarp();
    shared_.compute.queries.release(at_q_);
    at_q_.advance();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      result.m[c] *= scale_log2 / kLog2e;
    }
  }

  // Computes tile j. With `is_last` it stays as it is.
  __device__ __forceinline__ void compute_tile(const Part& part, int j, bool is_last,
                                               float scale_log2, Result& result) {
    std::uint8_t* const tile_k = shared_.tiles[at_.stage];
    std::uint8_t* const tile_v = tile_k + Config::TileK::kTile_bytes;
    const auto& descales = shared_.descales[at_.stage];
    auto s = Tiles::scores();
    auto rS = by_rows<typename Tiles::MmaQk>(s);
    shared_.k.wait(at_);
    wgmma<false>(typename Tiles::MmaQk{}, Tiles::operand_k(tile_k),
                 Tiles::operand_q(shared_.compute.q[at_q_.stage]), s);
    if (scales_rows(p_.k_descale)) {
      scale_keys(rS, descales[0]);
    }
    if (!is_last) {
      shared_.k.release(at_);
    }
    if (p_.softcap > 0.0f) {
      cuda::cap(rS, scale_, p_.softcap);
    }
    const int first = j * kDecodeTileKeys;
    const bool is_masked = first < part.whole_first || first + kDecodeTileKeys > part.whole_end;
    const std::uint32_t seen = is_masked ? seen_by_rows(part, first) : 0;
    if (is_masked) {
      mask(rS, seen);
    }
    weigh(rS, scale_log2, result);

    shared_.v.wait(at_);
    if (scales_rows(p_.v_descale)) {
      scale_keys(rS, descales[1]);
    }
    leave_weights(rS);
    if (is_masked && !Config::kIsE4m3) {
      clear_unseen(tile_v, seen);
    }
    cutlass::arch::fence_view_async_shared();
    place_.sync_group();
    wgmma<true>(typename Tiles::MmaPv{}, Tiles::operand_v(tile_v),
                Tiles::operand_p(shared_.compute.p[place_.group]), result.o);
    if (!is_last) {
      shared_.v.release(at_);
    }
  }

  __device__ static bool scales_rows(const Descales& descale) {
    return Config::kIsE4m3 && descale.per == Descales::Per::row;
  }

  // Scales each key's scores, or their exponentials, by its descale. That of a key which no query
  // sees may be NaN: its score is masked later, and its exponential, a 0, stays one.
  template <typename TensorS>
  __device__ void scale_keys(TensorS& rS, const float* descales) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float descale = descales[kStepKeys * place_.warp + 8 * i + place_.g];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        rS(i, c) = rS(i, c) == 0.0f ? 0.0f : rS(i, c) * descale;
      }
    }
  }

  // Which of this warp's 16 keys of the tile that begins with key key0 a lane's rows see: its row
  // of the first 32, and of the next.
  __device__ std::uint32_t seen_by_rows(const Part& part, int key0) const {
    std::uint32_t seen = 0;
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < Config::kRows; row += 32) {
      seen |= seen_keys(p_, launch_, part, row, key0 + kStepKeys * place_.warp) << row / 32 * 16;
    }
    return seen;
  }

  // Scores of keys that a row does not see become -infinity.
  template <typename TensorS>
  __device__ __forceinline__ void mask(TensorS& rS, std::uint32_t seen) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = place_.row(c);
      const std::uint32_t keys = __shfl_sync(0xffffffffu, seen, row) >> (c / 8 * 16 + place_.g);
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
  __device__ __forceinline__ void weigh(TensorS& rS, float scale_log2, Result& result) const {
    const auto larger = [](float a, float b) { return fmaxf(a, b); };
    float m[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m[c] = SwappedPlace::over_lanes(fmaxf(rS(0, c), rS(1, c)), larger);
    }
    place_.over_warps(shared_.compute.reduced[place_.group], m, larger);
    float correction[kColumns];
    bool moves = false;  // a row that has an O, whose reference moves
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m[c] = fmaxf(m[c], result.m[c]);
      const float reference = m[c] == kMinusInf ? 0.0f : __fmul_rn(m[c], scale_log2);
      correction[c] = exp2_approx(__fmul_rn(result.m[c], scale_log2) - reference);
      moves |= m[c] != result.m[c] && result.m[c] != kMinusInf;
      result.m[c] = m[c];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rS(i, c) = exp2_approx(fmaf(rS(i, c), scale_log2, -reference));
      }
      result.l[c] = result.l[c] * correction[c] + (rS(0, c) + rS(1, c));
    }
    if (__any_sync(0xffffffffu, moves)) {
      auto rO = by_rows<typename Tiles::MmaPv>(result.o);
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
    const int chunk = 2 * place_.warp + lane / 8 % 2;  // of eight keys
    const std::uint32_t place = cute::cast_smem_ptr_to_uint(shared_.compute.p[place_.group]) +
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
        *reinterpret_cast<uint4*>(
            tile + Tile::offset(kStepKeys * place_.warp + key, i % Tile::kChunks)) = uint4{};
      }
    }
  }

  SharedStorage<Config>& shared_;
  const Params& p_;
  const Launch& launch_;
  const SwappedPlace place_;
  typename Config::Position at_;
  QueryPosition at_q_;
  float scale_ = 0.0f;  // of scores
  int last_ = 0;        // the stages of the part's last tile, and of the one before
  int before_ = 0;
};

template <int kIndex, typename Element, typename CacheElement>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element, CacheElement>::kThreads, 1)
    decode_swapped(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
                   const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element, CacheElement>;
  run_block<Config, SwappedCompute<Config>>(p, maps, launch);
}

}  // namespace decode
}  // namespace tilewright::cuda
