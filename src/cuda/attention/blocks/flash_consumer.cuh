// The consumers of flash's kind: K6's loop, persistent, with the features chosen at run time.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/flash_config.cuh"
#include "cuda/attention/blocks/flash_finish.cuh"
#include "cuda/attention/blocks/lazy_softmax.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/common/tma.cuh"

namespace tilewright::cuda {
namespace flash {

using namespace cute;

// Skips the key tiles that only other consumers' rows see: those from the last one, j, down to
// `end`. skip_tile() skips one in the rings.
template <int kConsumers, typename SkipTile>
__device__ __forceinline__ void skip_key_tiles(const PingPong<kConsumers>& ping_pong, int& j,
                                               int end, const SkipTile& skip_tile) {
#pragma unroll 1
  for (; j >= end; --j) {
    ping_pong.skip();
    skip_tile();
  }
}

// A consumer: one warpgroup, which computes its 64 rows of one tile after another.
template <typename Storage, typename Params>
__device__ void consume(Storage& shared, const Params& p, int consumer) {
  using Config = typename Storage::Config;
  using Element = typename Config::Element;
  using T = typename Config::Tiles;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr int kBc = Config::C.bc;
  constexpr bool kMayHalve = kBc == 128;  // P V may skip the second half of the last key tile
  // Are there registers for the soft cap of small scores?
  constexpr bool kMayBeSmall = Config::C.head_dim <= 128 && Config::C.cluster == 1;
  const int thread = threadIdx.x % kWarpgroupThreads;

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const Tensor tOrV = T::operand_v(shared.sV[0]);
  Tensor tSrS = T::scores();
  Tensor tOrO = T::output();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  Tensor rO = by_rows<MmaPv>(tOrO);  // (rows, columns)
  const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread));
  const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread));
  Tensor rP = make_tensor_like<Element>(tSrS);
  const Tensor tOrP = make_tensor(rP.data(), c_registers_of_a<MmaQk, MmaPv>());

  constexpr int kRows = size<0>(rS);
  // Does each tile have a scale of its own, and its values, too?
  constexpr bool kScalesTiles = requires(typename Storage::Tile tile) { tile.value_scale; };
  const float call_scale_log2 = scale_to_log2(p.softcap > 0.0f ? p.softcap : p.scale);
  const float most_log2 = most_p_log2(p.causal);
  const PingPong<Config::kConsumers> ping_pong{consumer};
  typename Config::PositionK at_k;
  typename Config::PositionV at_v;
  RingPosition<1> at_q;
  RingPosition<1> at_o;
  typename Storage::TilePosition at_tile;
  ping_pong.begin();

  while (true) {
    const auto& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    float scale = p.scale;
    float scale_log2 = call_scale_log2;
    if constexpr (kScalesTiles) {
      scale = tile.scale;
      scale_log2 = scale_to_log2(p.softcap > 0.0f ? p.softcap : scale);
    }
    const int row0 = tile.row0 + consumer * kWarpgroupRows;
    const int first = tile.kv_first;
    const SeenTiles seen(p, tile, row0, kWarpgroupRows, kBc);
    // If no row sees the second half of the last key tile, P is 0 there and P V skips it. With a
    // causal mask this holds for every other consumer.
    bool is_half = kMayHalve && seen.last_len <= kBc / 2;  // until its P V is issued
    int j = tile.kv_end - 1;
    LazyRows<kRows> rows;
    float factor[kRows];

    const auto takes_plain_step = [&](int key_tile) {
      return key_tile >= seen.lazy_first && key_tile < seen.lazy_end && p.softcap == 0.0f;
    };
    const auto cap_and_mask = [&] {
      if (p.softcap > 0.0f) {
        cap_to_one<kMayBeSmall>(rS, scale / p.softcap);
      }
      if (j >= seen.lazy_end || j < seen.lazy_first) {
        const VisibleKeys keys = tile.visible_keys(p);
        mask_outside(
            rS, cS, [&](int row) { return keys.first(row0 + row) - j * kBc; },
            [&](int row) { return keys.end(row0 + row) - j * kBc; });
      }
    };

    const auto issue_pv = [&] {
      const Tensor V = tOrV(_, _, _, at_v.stage);
      if (kMayHalve && is_half) {
        wgmma_issue<true, kMayHalve ? 2 : 1>(MmaPv{}, tOrP, V, tOrO);
        is_half = false;
      } else {
        wgmma_issue<true>(MmaPv{}, tOrP, V, tOrO);
      }
    };

    const auto release_q_after = [&](int key_tile) {
      if (key_tile == first) {  // the last GEMM that reads Q
        shared.q[consumer].release(at_q);
      }
    };

    if (j >= first) {
      // The first step, over the last key tile that these rows see, computes P.
      shared.q[consumer].wait(at_q);
      skip_key_tiles(ping_pong, j, seen.end, [&] {
        shared.k.skip(at_k);
        shared.v.skip(at_v);
        at_k.advance();
        at_v.advance();
      });
      shared.k.wait(at_k);
      wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at_k.stage), tSrS);
      clear(tOrO);
      wgmma_wait<0>(tSrS);
      shared.k.release(at_k);
      release_q_after(j);
      cap_and_mask();
      eager_softmax_step<MmaQk>(rS, rows, scale_log2, factor);
      round_to_16_bits(tSrS, rP);

      // A step over key tile j: it adds P V of tile j + 1 to O, and computes P of tile j.
      const auto step = [&](auto plain) {
        --j;
        at_k.advance();

        // Both GEMMs are issued when it is this consumer's turn.
        ping_pong.wait();
        shared.k.wait(at_k);
        wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at_k.stage), tSrS);
        shared.v.wait(at_v);
        issue_pv();
        ping_pong.pass();

        // The softmax of S runs while P V is computed.
        wgmma_wait<1>(tSrS);
        shared.k.release(at_k);
        release_q_after(j);
        bool moved = false;
        if constexpr (decltype(plain)::value) {
          moved = lazy_softmax_step<MmaQk>(rS, rows, scale_log2, most_log2, factor);
        } else {
          cap_and_mask();
          eager_softmax_step<MmaQk>(rS, rows, scale_log2, factor);
        }

        // P V is done: O may be scaled, and P overwritten.
        wgmma_wait<0>(tOrO);
        shared.v.release(at_v);
        at_v.advance();
        if constexpr (!decltype(plain)::value) {
          scale_rows(rO, factor);
        }
        round_to_16_bits(tSrS, rP);
        return moved;
      };
      while (j > first) {
        while (j > first && !takes_plain_step(j - 1)) {
          step(false_type{});
        }
        bool moved = false;
        while (!moved && j > first && takes_plain_step(j - 1)) {
          moved = step(true_type{});
        }
        if (moved) {  // rare, and so outside the inner loop
          scale_rows(rO, factor);
        }
      }
      shared.v.wait(at_v);
      issue_pv();  // of the first key tile
    } else {
      clear(tOrO);
    }
    finish_statistics<Element, MmaPv>(p, tile, row0, cO, rows, scale_log2, factor);
    wgmma_wait<0>(tOrO);
    if (j >= first) {
      shared.v.release(at_v);
      at_k.advance();
      at_v.advance();
      at_q.advance();
    }
    if constexpr (kScalesTiles) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        factor[i] *= tile.value_scale;
      }
    }
    scale_rows(rO, factor);
    finish_output<Config>(shared.output, p, tile, row0, consumer, at_o, tOrO, rO, cO);
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
  ping_pong.end();
}

}  // namespace flash
}  // namespace tilewright::cuda
