// Decode with operands swapped: keys are the rows of both GEMMs, and queries their columns (kernel
// decode_swapped).
//
// A warpgroup's MMA has 64 rows and as few as eight columns. A decoding sequence has few queries to
// a KV head, and many keys; so keys are the rows. The only padding is that of queries to a multiple
// of eight, a tile costs each warp few instructions, and O is so small that one pass merges it.
//
//   S^T (64 keys, queries) = K Q^T     P^T = exp(S^T - m)     O^T (Dv, queries) += V^T P^T
//
// Source    CUTLASS's word for it is swap AB; FlashDecoding; stream-K (Osama et al., 2023).
// Tiles     8, 16, 32 or 64 queries, which are the row tile of the schedule; Bc = 64 keys. Three
//           warpgroups take tiles in turn; two with 64 queries.
// SMEM      stages x Bc x (D + Dv) of the caches' type; Q in 1 or 2 stages; a slice of O for
//           clusters.
// Registers 144 or 152 for a thread of three warpgroups that compute, 224 for one of two; 56 or 80
//           for one that loads. With n queries, n Dv / 128 hold O, n / 2 hold S, and n / 4
//           each m and l.
//
//   warpgroup 0       tile 0: S^T | max | P^T | O^T | tile 3 ...
//   warpgroup 1       tile 1: S^T | max | P^T | O^T | tile 4 ...
//   warpgroup 2       tile 2: S^T | max | P^T | O^T | tile 5 ...
//   then a warp       finds the block's parts, from the lengths in memory (walk.cuh)
//   and three         load K, V (load.cuh, prefetch.cuh) and Q
//
// A query's maximum and sum are taken over a thread's two keys, then over eight lanes, then over
// four warps, through SMEM (over_keys). P^T takes the place of the tile's K. At a part's end each
// warpgroup leaves O where its last tile was.
//
// E4M3      K and V are widened in registers, as operand A (swapped_operands.cuh); at most 32
//           queries. Q's columns change their order on their way to SMEM.
// Limits    Caches that TMA can load: whole, or in pages of 16, 32 or a multiple of 64 rows.
// Worklog   docs/worklog/decode.md
#pragma once

#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/decode/block.cuh"
#include "cuda/attention/decode/seen_keys.cuh"
#include "cuda/attention/decode/swapped_operands.cuh"
#include "cuda/attention/decode/swapped_place.cuh"

namespace tilewright::cuda {
namespace decode {

// What a warpgroup has of the queries, from its tiles.
template <typename Config>
struct SwappedResult {
  static constexpr int kColumns = Config::kRows / 4;  // queries of a thread
  decltype(SwappedTiles<Config>::output()) o;
  float m[kColumns];
  float l[kColumns];  // of this thread's keys
};

// What the warpgroups leave in SMEM for Finish. It lies where the last tile of each was. Piece 0 is
// that of the part's last tile, piece 1 that of the tile before, and so on.
template <typename Config>
struct SwappedPieces {
  using Tiles = SwappedTiles<Config>;
  static constexpr int kMost = SwappedForm<Config>::kGroups;
  static_assert(Config::kRows * Config::C.value_dim * 4 <= SharedStorage<Config>::kTile_bytes);
  static_assert(Config::kStages > kMost, "tiles are loaded while each warpgroup holds one");

  SharedStorage<Config>& shared;
  SwappedPlace place;
  const SwappedResult<Config>& result;
  int tiles;        // of the part
  int last;         // the stage of its last tile
  float descale_v;  // of the whole sequence

  __device__ static int rows_of(int rows, int) { return rows; }
  __device__ static int tile_row(int i, int) { return i; }
  __device__ int count() const { return min(tiles, kMost); }

  __device__ int stage_of(int piece) const {
    return last < piece ? last - piece + Config::kStages : last - piece;
  }
  // This warpgroup's piece, if it has one of the part's tiles.
  __device__ int own() const { return (last - place.group + kMost) % kMost; }
  __device__ bool has_own() const { return own() < tiles; }

  __device__ void leave(int) const {
    if (tiles == 0) {
      return;
    }
    if (has_own()) {
      const auto add = [](float a, float b) { return a + b; };
      constexpr int kColumns = SwappedResult<Config>::kColumns;
      float l[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        l[c] = result.l[c];
      }
      // Behind its barrier all four warps have read the tile, which leave_queries() overwrites.
      place.over_keys(shared.compute.reduced[place.group], l, add);
      leave_queries(l);
    }
    sync_consumer<Config>();
  }

  // The pieces of query i, from quad q on.
  struct Source {
    const SwappedPieces& pieces;
    int query;
    int column;

    template <int kQuads>
    __device__ Piece<kQuads> at(int piece) const {
      constexpr int kApart = Config::C.value_dim / kQuads;  // columns
      static_assert(kApart % 32 == 0 || kQuads == 1, "offset() moves columns within 32");
      const int stage = pieces.stage_of(piece);
      const auto& compute = pieces.shared.compute;
      const float2 statistics = compute.statistics[stage % kMost][query];
      const float* const first = pieces.memory(stage) + offset(query, column);
      Piece<kQuads> result{.m = statistics.x, .l = statistics.y};
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        result.o[j] = *reinterpret_cast<const float4*>(first + j * kApart);
      }
      return result;
    }
  };
  __device__ Source source(int i, int q) const { return {*this, i, 4 * q}; }

 private:
  // Where a column of a query's O lies. What neighbouring threads leave is in different banks.
  __device__ static int offset(int query, int column) {
    return query * Config::C.value_dim + (column ^ (query & 6) * 4);
  }
  __device__ float* memory(int stage) const {
    return reinterpret_cast<float*>(shared.tiles[stage]);
  }

  // Leaves this thread's columns of its queries' O. Of E4M3 tiles two are neighbours.
  template <int kColumns>
  __device__ __forceinline__ void leave_queries(const float (&l)[kColumns]) const {
    const auto rO = by_rows<typename Tiles::MmaPv>(result.o);
    const auto& [group, warp, g, t] = place;
    float* const o = memory(stage_of(own()));
    float* const targets[2] = {o + offset(2 * t, Tiles::column(warp, g, 0)),
                               o + offset(2 * t, Tiles::column(warp, g, 1))};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int behind = (place.query(c) - 2 * t) * Config::C.value_dim;
#pragma unroll
      for (int i = 0; i < cute::size<0>(rO); i += 2) {
        const int at = behind + i / 2 * 64;
        if constexpr (Config::kIsE4m3) {
          constexpr float kFactor = SwappedFactors<Config>::kOfO;
          *reinterpret_cast<float2*>(targets[0] + at) = {rO(i, c) * kFactor * descale_v,
                                                         rO(i + 1, c) * kFactor * descale_v};
        } else {
          targets[0][at] = rO(i, c);
          targets[1][at] = rO(i + 1, c);
        }
      }
      if (warp == 0 && g == 0) {
        shared.compute.statistics[group][place.query(c)] = {result.m[c], l[c]};
      }
    }
  }
};

// The consumer: warpgroups that take tiles in turn. A stage of the ring is always the same
// warpgroup's.
template <typename Config>
class SwappedCompute {
 public:
  using Pieces = SwappedPieces<Config>;
  using Result = SwappedResult<Config>;
  static constexpr int kLoadWarps = 3;  // of K, of V and of Q
  static constexpr int kGroups = SwappedForm<Config>::kGroups;
  static constexpr bool kConsumerBringsQ = SwappedForm<Config>::kConsumerBringsQ;
  static constexpr int kRegisters = kGroups == 3 ? 512 : 504;  // of a thread of each warpgroup
  static constexpr int kConsumerRegisters = kGroups == 3 ? (Config::kRows < 32 ? 144 : 152) : 224;
  static constexpr int kLoadRegisters = kRegisters - kGroups * kConsumerRegisters;

  __device__ static void set_up(SharedStorage<Config>& shared) {
    shared.compute.queries.init(Config::kConsumerWarps);
  }

  __device__ SwappedCompute(SharedStorage<Config>& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  // Computes a part's tiles. Each warpgroup's last one stays as it is until release().
  __device__ __forceinline__ Pieces run(const Part& part, Result& result) {
    const int tiles = part.tiles.end - part.tiles.first;
    cute::clear(result.o);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      result.m[c] = kMinusInf;
      result.l[c] = 0.0f;
    }
    const float descale_v = Config::kIsE4m3 && tiles > 0 ? descale_of(p_.v_descale, part) : 1.0f;
    if (tiles > 0) {
      compute(part, tiles, result);
    }
    tiles_ += tiles;
    return {.shared = shared_,
            .place = place_,
            .result = result,
            .tiles = tiles,
            .last = static_cast<int>((tiles_ - 1) % Config::kStages),
            .descale_v = descale_v};
  }

  __device__ void release(const Pieces& pieces) {
    if (pieces.tiles > 0) {
      cutlass::arch::fence_view_async_shared();  // before TMA writes where results were
      sync_consumer<Config>();                   // all warpgroups have merged
      if (pieces.has_own()) {
        release_tile(pieces.stage_of(pieces.own()));
      }
    }
  }

  // Loads the parts' rows of Q. What the consumer brings is only brought to L2, ahead of most of K
  // and V in memory's queue; the launch ahead may still write it. A warp calls it.
  __device__ static void load_queries(SharedStorage<Config>& shared, const Params& p,
                                      const Launch& launch, const TensorMaps& maps) {
    auto& compute = shared.compute;
    QueryPosition at;
    PartRing::Position at_part = leave_empty_part(shared.parts);
    while (true) {
      const Part& part = shared.parts.wait(at_part);
      if constexpr (!kConsumerBringsQ) {
        wait_for_launch_before();
      }
      if (part.is_end) {
        break;
      }
      if (part.tiles.first < part.tiles.end) {
        if constexpr (kConsumerBringsQ) {
          prefetch_query_rows<Config>(p, launch, part);
        } else if constexpr (Config::kIsE4m3) {
          compute.queries.wait_until_empty(at);
          load_query_rows<Config, 32>(compute.q[at.stage], p, launch, part);
          cutlass::arch::fence_view_async_shared();
          __syncwarp();
          compute.queries.put(at);
        } else if (threadIdx.x % 32 == 0) {
          TmaBarrier& full = compute.queries.acquire(at, query_bytes<Config>(launch));
          load_query_boxes<Config>(compute.q[at.stage], full, maps.q, launch, part,
                                   p.packed_q.cu_seqlens != nullptr);
        }
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
    static_assert(Config::kStages % kGroups == 0);
    const int own = (place_.group + kGroups - static_cast<int>(tiles_ % kGroups)) % kGroups;
    const float scale_log2 = p_.softcap > 0.0f ? kLog2e : scale_to_log2(scale(part));
    if constexpr (kConsumerBringsQ) {
      bring_queries(part);
    } else {
      shared_.compute.queries.wait(at_q_);
    }
#pragma unroll 1
    for (int i = own; i < tiles; i += kGroups) {
      const int first = (part.tiles.first + i) * kDecodeTileKeys;
      const bool is_whole = first >= part.whole_first && first + kDecodeTileKeys <= part.whole_end;
      const std::uint32_t number = tiles_ + i;
      const typename Config::Position at{.stage = static_cast<int>(number % Config::kStages),
                                         .phase = number / Config::kStages & 1};
      compute_tile(part, at, first, is_whole, i + kGroups >= tiles, scale_log2, result);
    }
    if constexpr (!kConsumerBringsQ) {
      __syncwarp();
      shared_.compute.queries.release(at_q_);
      at_q_.advance();
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      result.m[c] *= scale_log2 * (1.0f / kLog2e);
    }
  }

  // Brings the part's rows of Q from L2.
  __device__ __forceinline__ void bring_queries(const Part& part) {
    load_query_rows<Config, Config::kConsumerThreads>(shared_.compute.q[0], p_, launch_, part);
    cutlass::arch::fence_view_async_shared();
    sync_consumer<Config>();
  }

  // Computes the tile that begins with key `first`, of which all queries see all keys if it
  // is_whole. If it is the warpgroup's last one, it is not released: O will lie there.
  __device__ __forceinline__ void compute_tile(const Part& part,
                                               const typename Config::Position& at, int first,
                                               bool is_whole, bool is_last, float scale_log2,
                                               Result& result) {
    std::uint8_t* const tile_k = shared_.tiles[at.stage];
    std::uint8_t* const tile_v = tile_k + Config::TileK::kTile_bytes;
    auto* const p = reinterpret_cast<Element*>(tile_k);
    static_assert(Config::kRows * kDecodeTileKeys * sizeof(Element) <= Config::TileK::kTile_bytes);
    const auto& descales = shared_.descales[at.stage];
    auto s = Tiles::scores();
    auto rS = by_rows<typename Tiles::MmaQk>(s);  // (keys, queries)
    shared_.k.wait(at);
    typename Tiles::Values values;
    Tiles::compute_scores(tile_k, shared_.compute.q[at_q_.stage], s, [&] {
      if constexpr (Tiles::kLoadsValuesEarly) {
        shared_.v.wait(at);
        values.load(tile_v);
      }
    });
    if (scales_rows(p_.k_descale)) {
      scale_keys(rS, descales[0]);
    }
    if (p_.softcap > 0.0f) {
      cuda::cap(rS, scale(part), p_.softcap);
    }
    const std::uint32_t seen = is_whole ? 0 : seen_by_queries(part, first);
    if (!is_whole) {
      mask(rS, seen);
    }
    take_exponentials(rS, scale_log2, result);

    if constexpr (!Tiles::kLoadsValuesEarly) {
      shared_.v.wait(at);
      values.load(tile_v);
    }
    if (scales_rows(p_.v_descale)) {
      scale_keys(rS, descales[1]);
    }
    store_p(rS, p);
    if (!is_whole && !Config::kIsE4m3) {
      clear_unseen(tile_v, seen);
    }
    cutlass::arch::fence_view_async_shared();
    place_.sync_group();
    Tiles::compute_values(values, p, result.o);
    if (!is_last) {
      release_tile(at.stage);
    }
  }

  // What scores are multiplied by, as the GEMM leaves them.
  __device__ float scale(const Part& part) const {
    return scale_of<Config>(p_, part) * SwappedFactors<Config>::kOfScores;
  }

  __device__ void release_tile(int stage) {
    const typename Config::Position at{.stage = stage};
    __syncwarp();  // all lanes have read theirs
    shared_.k.release(at);
    shared_.v.release(at);
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

  // Which of this warp's 16 keys of the tile that begins with key key0 are seen by query `lane`, in
  // the low half of the word, and by query 32 + lane, in the high one.
  __device__ std::uint32_t seen_by_queries(const Part& part, int key0) const {
    std::uint32_t seen = 0;
#pragma unroll 1
    for (int query = threadIdx.x % 32; query < Config::kRows; query += 32) {
      const std::uint32_t keys =
          seen_keys(p_, launch_, part, query, key0 + kStepKeys * place_.warp);
      seen |= keys << query / 32 * 16;
    }
    return seen;
  }

  // Scores of keys that a query does not see become -infinity.
  template <typename TensorS>
  __device__ __forceinline__ void mask(TensorS& rS, std::uint32_t seen) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const std::uint32_t of_query = __shfl_sync(0xffffffffu, seen, place_.query(c) % 32);
      const std::uint32_t keys = of_query >> (c / 8 * 16 + place_.g);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rS(i, c) = keys & (1u << 8 * i) ? rS(i, c) : kMinusInf;
      }
    }
  }

  // One step of the online softmax: S becomes P = exp2((S - m) * scale_log2) under the new maxima
  // m; l, this thread's sums, and O are scaled to them. A query that has seen no key keeps
  // m = -infinity and P = 0.
  template <typename TensorS>
  __device__ __forceinline__ void take_exponentials(TensorS& rS, float scale_log2,
                                                    Result& result) const {
    const auto larger = [](float a, float b) { return fmaxf(a, b); };
    float m[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m[c] = fmaxf(rS(0, c), rS(1, c));
    }
    place_.over_keys(shared_.compute.reduced[place_.group], m, larger);
    float correction[kColumns];
    bool moves = false;  // the maximum of a query that has an O
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

  // P^T becomes an operand in SMEM, where each query has a swizzled row of 64 keys. All warps have
  // read K, which lay there: take_exponentials() has a barrier.
  template <typename TensorS>
  __device__ __forceinline__ void store_p(const TensorS& rS, Element* p) const {
    constexpr int kMatrices = Config::kRows == 8 ? 2 : 4;  // of 8 keys x 8 rows, at a time
    const int lane = threadIdx.x % 32;
    const int in_row = lane % 8;
    const int chunk = 2 * place_.warp + lane / 8 % 2;  // of eight keys
    const std::uint32_t place = cute::cast_smem_ptr_to_uint(p) +
                                (lane / 16 * 8 % Config::kRows + in_row) * 128 +
                                (chunk ^ in_row) * 16;
#pragma unroll
    for (int c = 0; c < kColumns; c += kMatrices) {
      std::uint32_t r[kMatrices];
#pragma unroll
      for (int k = 0; k < kMatrices; ++k) {
        const int column = c + k / 2 * 2;
        r[k] = SwappedFactors<Config>::of_p(
            pack_x2<Element>(rS(k % 2, column), rS(k % 2, column + 1)));
      }
      store_transposed(place + c * 4 * 128, r);
    }
  }

  // Values of keys that no query sees become zeros: they may be NaN, or another tile's. Each warp
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
  std::uint32_t tiles_ = 0;  // of the block's parts before
  QueryPosition at_q_;
};

template <int kIndex, typename Element, typename CacheElement, bool kIsInvariant>
__global__ void __launch_bounds__(ConfigOf<kIndex, Element, CacheElement, kIsInvariant>::kThreads,
                                  1)
    decode_swapped(const __grid_constant__ Params p, const __grid_constant__ TensorMaps maps,
                   const __grid_constant__ Launch launch) {
  using Config = ConfigOf<kIndex, Element, CacheElement, kIsInvariant>;
  run_block<Config, SwappedCompute<Config>>(p, maps, launch);
}

}  // namespace decode
}  // namespace tilewright::cuda
