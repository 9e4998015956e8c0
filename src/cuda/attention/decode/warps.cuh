// The consumer in the form in which queries are the rows of MMAs: four warps, each by itself, on
// its own keys of each tile, with no barrier among them before a part ends. In a pass over eight
// rows of each warp they then leave O, m and l in SMEM.
#pragma once

#include "cuda/attention/decode/attend.cuh"

namespace tilewright::cuda {
namespace decode {

// Where a piece of warp `warp` lies in the part's last key tile: of its row g, columns from 4 q on.
// Neighbouring rows' pieces lie in different banks.
template <typename Config>
__device__ int place_in_tile(int warp, int g, int q) {
  return (warp * 8 + g) * (Config::C.value_dim / 4) + (q ^ g);
}

// What the warps leave in SMEM for Finish. `tile` is the memory of the part's last key tile, null
// if it has none.
template <typename Config>
struct WarpsPieces {
  static constexpr int kMost = WarpsForm<Config>::kKeyWarps;

  SharedStorage<Config>& shared;
  float4* tile;
  const WarpResult<Config>& result;

  __device__ static int rows_of(int rows, int pass) {
    return Config::kRows == 16 ? min(rows - 8 * pass, 8) : Config::kPassRows;
  }
  __device__ static int tile_row(int i, int pass) { return i / 8 * 16 + pass * 8 + i % 8; }
  __device__ int count() const { return tile != nullptr ? kMost : 0; }

  __device__ void leave(int pass) const {
    if (tile != nullptr) {
      sync_consumer<Config>();  // all warps have read the tile, and what the pass before left
      leave_row(pass);
      sync_consumer<Config>();
    }
  }

  // Of the warps that share the row tile's keys.
  __device__ PieceSource source(int i, int q) const {
    constexpr int kWarp = WarpsForm<Config>::kRowWarps;  // from one to the next
    const int warp = i / 8;
    const int g = i % 8;
    const float2* const statistics = &shared.compute.statistics[warp][g];
    const float4* const o = tile + place_in_tile<Config>(warp, g, q);
    constexpr int kStep = 8 * kWarp * (Config::C.value_dim / 4);
    return {statistics, o, 8 * kWarp, kStep};
  }

 private:
  // Leaves this thread's row g of a pass's eight. A 16-bit V gives a thread two neighbouring
  // columns of every eight; an E4M3 one gives it four of every 16, in the order 0, 2, 1, 3.
  __device__ void leave_row(int pass) const {
    const int warp = threadIdx.x / 32;
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    if constexpr (Config::kIsE4m3) {
#pragma unroll
      for (int j = 0; j < Config::C.value_dim / 8; j += 2) {
        const float(&even)[4] = result.o[j];
        const float(&odd)[4] = result.o[j + 1];
        tile[place_in_tile<Config>(warp, g, 2 * j + t)] =
            pass == 0 ? float4{even[0], odd[0], even[1], odd[1]}
                      : float4{even[2], odd[2], even[3], odd[3]};
      }
    } else {
#pragma unroll
      for (int j = 0; j < Config::C.value_dim / 8; ++j) {
        const float(&o)[4] = result.o[j];
        auto* const pair =
            reinterpret_cast<float2*>(tile + place_in_tile<Config>(warp, g, 2 * j + t / 2));
        pair[t % 2] = pass == 0 ? float2{o[0], o[1]} : float2{o[2], o[3]};
      }
    }
    if (t == 0) {
      shared.compute.statistics[warp][g] =
          pass == 0 ? float2{result.m[0], result.l[0]} : float2{result.m[1], result.l[1]};
    }
  }
};

template <typename Config>
class WarpsCompute {
 public:
  using Pieces = WarpsPieces<Config>;
  using Result = WarpResult<Config>;
  static constexpr int kLoadWarps = 2;  // of K and of V
  // Where an SM has two blocks; elsewhere each thread may have 255.
  static constexpr int kConsumerRegisters = Config::C.blocks_per_sm == 1 ? 0
                                            : Config::kRows == 16        ? 184
                                                                         : 200;
  static constexpr int kLoadRegisters = 256 - kConsumerRegisters;

  __device__ static void set_up(SharedStorage<Config>&) {}

  __device__ WarpsCompute(SharedStorage<Config>& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  // Computes a part's tiles. The last one stays as it is until release().
  __device__ __forceinline__ Pieces run(const Part& part, Result& result) {
    result = {.o = {}, .m = {kMinusInf, kMinusInf}, .l = {}};
    float4* tile = nullptr;
    if (part.tiles.first < part.tiles.end) {
      compute(part, result);
      tile = reinterpret_cast<float4*>(shared_.tiles[at_.stage]);
    }
    return {.shared = shared_, .tile = tile, .result = result};
  }

  __device__ void release(const Pieces& pieces) {
    if (pieces.tile != nullptr) {
      cutlass::arch::fence_view_async_shared();  // before TMA writes where results were
      __syncwarp();
      shared_.k.release(at_);
      shared_.v.release(at_);
      at_.advance();
    }
  }

 private:
  __device__ __forceinline__ void compute(const Part& part, Result& result) {
    const MatrixPlaces<Config::TileK::kRow_bytes, false> places_k;
    const MatrixPlaces<Config::TileV::kRow_bytes, true> places_v;
    const bool scales_k = Config::kIsE4m3 && p_.k_descale.per == Descales::Per::row;
    const bool scales_v = Config::kIsE4m3 && p_.v_descale.per == Descales::Per::row;
    const float scale = scale_of<Config>(p_, part);
    const float scale_log2 = p_.softcap > 0.0f ? kLog2e : scale_to_log2(scale);
    const QueryFragments<Config> q(shared_, p_, launch_, part, place_);

#pragma unroll 1
    for (int j = part.tiles.first; j < part.tiles.end; ++j) {
      const std::uint32_t tile_k = cute::cast_smem_ptr_to_uint(shared_.tiles[at_.stage]);
      const std::uint32_t tile_v = tile_k + Config::TileK::kTile_bytes;
      const auto& descales = shared_.descales[at_.stage];
      shared_.k.wait(at_);
#pragma unroll 1
      for (int row0 = place_.key0; row0 < place_.key0 + WarpsForm<Config>::kWarpKeys;
           row0 += kStepKeys) {
        const int first = j * kDecodeTileKeys + row0;
        const int end = first + kStepKeys;
        if (first >= part.end || end <= part.first) {
          continue;
        }
        Scores s;
        compute_scores<Config>(s, q, places_k, tile_k, row0);
        if (scales_k) {
          scale_keys(s, descales[0] + row0, place_);
        }
        if (p_.softcap > 0.0f) {
          cap(s, scale, p_.softcap);
        }
        const bool is_masked = first < part.whole_first || end > part.whole_end;
        const std::uint32_t seen = is_masked ? mask(s, p_, launch_, part, place_, first) : 0;
        softmax_step(s, result, scale_log2);
        shared_.v.wait(at_);
        if (scales_v) {
          scale_keys(s, descales[1] + row0, place_);
        }
        if (is_masked) {
          add_values<Config, true>(result, s, places_v, tile_v, row0, place_, seen);
        } else {
          add_values<Config, false>(result, s, places_v, tile_v, row0, place_, seen);
        }
      }
      shared_.v.wait(at_);
      __syncwarp();
      if (j + 1 < part.tiles.end) {
        shared_.k.release(at_);
        shared_.v.release(at_);
        at_.advance();
      }
    }
    end_sums(result, scale_log2, Config::kIsE4m3 ? descale_of(p_.v_descale, part) : 1.0f);
  }

  // Adds up the sums of the lanes that share a row. m becomes a maximum of scaled scores.
  __device__ static __forceinline__ void end_sums(Result& result, float scale_log2,
                                                  float descale_v) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      result.l[half] += __shfl_xor_sync(0xffffffffu, result.l[half], 1);
      result.l[half] += __shfl_xor_sync(0xffffffffu, result.l[half], 2);
      result.m[half] *= scale_log2 / kLog2e;
    }
    if constexpr (Config::kIsE4m3) {
#pragma unroll
      for (auto& o : result.o) {
        for (float& value : o) {
          value *= descale_v;
        }
      }
    }
  }

  SharedStorage<Config>& shared_;
  const Params& p_;
  const Launch& launch_;
  const WarpPlace<Config> place_;
  typename Config::Position at_;
};

}  // namespace decode
}  // namespace tilewright::cuda
