// The consumers of flash_fp8: K8's loop, persistent, with the features chosen at run time.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_finish.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/attention/blocks/value_sums.cuh"
#include "cuda/attention/flash_fp8/config.cuh"
#include "cuda/common/wgmma_wait.cuh"

namespace tilewright::cuda {
namespace flash_fp8 {

// Stores the results of the rows from row0 on, and finds the factors that O must be scaled by. O is
// in units of v_scale, and O and l have P's factor.
template <typename TiledMma, int kRows, typename TensorC>
__device__ __forceinline__ void finish_statistics(const AttentionFp8Params& p, const Tile& tile,
                                                  int row0, float v_scale, const TensorC& cO,
                                                  const RowState<kRows>& state,
                                                  float (&factor)[kRows]) {
  constexpr float kInverseFactor = 1.0f / (1 << kP_log2);
  RowResult result[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    result[i] = {.m = state.m[i] * (1.0f / kLog2e),
                 .l = row_sum<TiledMma>(state.l[i]) * kInverseFactor,
                 .rescale = v_scale * kInverseFactor};
  }
  if (p.sinks.logits != nullptr) {
    add_sink(result, p.sinks.logits[tile.head * p.sinks.stride]);
  }
  output_factors(result, p.statistics.max == nullptr, factor);
  store_results(p, tile, row0, cO, result);
}

// The thread's index in its warpgroup, read anew: no register keeps what follows from it.
__device__ __forceinline__ int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kWarpgroupThreads;
}

// What a step does to its scores. It is known at compile time: ptxas spills registers where S lies
// on both sides of a branch. Steps are always inlined, as WGMMAs may not cross a call.
enum class Scores : std::uint8_t { whole, masked, capped };  // capped ones are masked, too
template <Scores kScores>
using ScoresOf = std::integral_constant<Scores, kScores>;

// A consumer: one warpgroup, which computes its 64 rows of one tile after another. At D = 256, with
// features at 128, and where three consumers share the registers, there are not enough of them for
// S while P V is computed: then it is not. Turns limit the speed there, so that V is waited for
// before a turn, and given back when Q K^T is issued.
template <typename Config, typename Output, bool kIsPlain>
__device__ __forceinline__ void consume(SharedStorage<Config>& shared, const AttentionFp8Params& p,
                                        int consumer) {
  using T = typename Config::Tiles;
  using MmaQk = typename T::TiledMmaQk;
  using MmaPv = typename T::TiledMmaPv;
  constexpr int kParts = Config::kValueParts;
  using Sums = ValueSums<T, Config::C.head_dim, kFp8PromotionTiles, kParts>;
  constexpr int kBc = Config::C.bc;
  constexpr int kRows = Sums::kRows;
  constexpr bool kKeepsTurn = Config::kConsumers == 3;  // until S is there
  constexpr bool kOverlaps =
      kParts == 1 && Config::kConsumers == 2 && (kIsPlain || Config::C.head_dim == 64);

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const auto mma_v = typename Sums::MmaPart{}.get_slice(0);
  const Tensor tOrV = mma_v.make_fragment_B(
      mma_v.partition_B(T::tile(shared.sV[0], typename T::LayoutVt{})));  // (.., parts, .., stage)
  Tensor tSrS = T::scores();
  Tensor rS = by_rows<MmaQk>(tSrS);  // (rows, keys)
  constexpr auto kRegistersOfP = T::template score_registers<KeyOrder::kByKeys>();
  Tensor tOrP = make_tensor<typename Config::Element>(shape(kRegistersOfP));

  const PingPong<Config::kConsumers> ping_pong{consumer};
  typename Config::Position at;
  RingPosition<1> at_o;  // not used in plain problems, where every tile is stored by TMA
  ping_pong.begin();

  for (int count = 0;; ++count) {  // tiles
    const Tile& tile = shared.tiles.wait(tile_position(count));
    if (tile.is_end) {
      break;
    }
    const auto row0 = [&] { return tile.row0 + consumer * kWarpgroupRows; };
    const SeenKeyTiles& seen = tile.seen[consumer];
    const float q_scale_log2 =
        kLog2e * block_descales::query_scale(p, tile.sequence, tile.head,
                                             max(min(row0(), tile.q_len - 1), 0));
    int j = tile.kv_end - 1;
    Sums sums;
    RowState<kRows> state;
    float correction[kRows];
    float v_scale = 1.0f;

    // S of key tile j becomes P.
    const auto softmax = [&](auto scores, auto waits) __attribute__((always_inline)) {
      constexpr Scores kScores = scores;
      constexpr bool kWaits = decltype(waits)::value;
      constexpr bool kIsMasked = kScores != Scores::whole;
      const block_descales::TileDescales& descales = shared.descales.at(at);
      float scale_log2[block_descales::kBlocks];
      block_descales::find_scales<kIsMasked>(descales, q_scale_log2, scale_log2);
      if constexpr (kScores == Scores::capped) {
        block_descales::cap_blocks(rS, scale_log2, p.softcap);
        scale_log2[0] = scale_log2[1] = kLog2e;
      }
      if constexpr (kIsMasked) {
        const VisibleKeys keys = tile.visible_keys(p);
        const Tensor cS = by_rows<MmaQk>(T::score_coordinates(thread_index()));
        mask_reordered(
            rS, cS, [&](int row) { return keys.first(row0() + row) - j * kBc; },
            [&](int row) { return keys.end(row0() + row) - j * kBc; });
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        block_descales::move_maximum<MmaQk, kIsMasked>(rS, row, state, descales, scale_log2,
                                                       correction);
#pragma unroll
        for (int block = 0; block < block_descales::kBlocks; ++block) {
          block_descales::weigh<kIsMasked>(rS, row, block, state, descales, scale_log2);
          if (kWaits && row == 1 && block == 0) {
            wait_no_earlier_than_store(state.l[row]);
            sums.wait();
          }
        }
      }
    };
    const auto release_q_after = [&](int key_tile) {
      if (key_tile == tile.kv_first) {  // the last GEMM that reads Q
        shared.q[consumer].release(q_position(count));
      }
    };

    shared.q[consumer].wait(q_position(count));
    if (j >= tile.kv_first) {
      flash::skip_key_tiles(ping_pong, j, seen.end, [&] {
        shared.k.skip(at);
        shared.v.skip(at);
        at.advance();
      });
      // The first step, over the last key tile that these rows see, computes P.
      const auto first_step = [&](auto scores) __attribute__((always_inline)) {
        shared.k.wait(at);
        wgmma<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
        shared.k.release(at);
        release_q_after(j);
        softmax(scores, false_type{});
        round_to_e4m3(tSrS, kRegistersOfP, tOrP);
      };

      // A step over key tile j: it adds P V of tile j + 1 to O, and computes P of tile j.
      const auto step = [&](auto scores) __attribute__((always_inline)) {
        --j;
        const typename Config::Position at_v = at;
        at.advance();
        shared.v.wait(at_v);
        ping_pong.wait();
        if constexpr (kOverlaps) {
          shared.k.wait(at);
          wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
          sums.issue(tOrP, tOrV(_, 0, _, at_v.stage));
          ping_pong.pass();
          wgmma_wait<1>(tSrS);
        } else {
          sums.add_but_last(tOrP, tOrV(_, _, _, at_v.stage));
          sums.promote(kParts - 1);  // in add(), ptxas would spill registers
          shared.k.wait(at);
          wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
          shared.v.release(at_v);
          if constexpr (!kKeepsTurn) {
            ping_pong.pass();
          }
          wgmma_wait<0>(tSrS);
          if constexpr (kKeepsTurn) {
            ping_pong.pass();
          }
        }
        shared.k.release(at);
        release_q_after(j);
        softmax(scores, std::bool_constant<kOverlaps>{});
        if constexpr (kOverlaps) {
          shared.v.release(at_v);
          sums.next_units(correction);
        } else {
          sums.set_units(correction);
        }
        round_to_e4m3(tSrS, kRegistersOfP, tOrP);
      };
      if (p.softcap > 0.0f) {
        constexpr ScoresOf<Scores::capped> kCapped;
        first_step(kCapped);
        while (j > tile.kv_first) {
          step(kCapped);
        }
      } else {
        constexpr ScoresOf<Scores::masked> kMasked;
        constexpr ScoresOf<Scores::whole> kWhole;
        first_step(kMasked);
        while (j > tile.kv_first) {
          while (j > tile.kv_first && (j > seen.whole_end || j <= seen.whole_first)) {
            step(kMasked);
          }
          const int last = max(tile.kv_first, seen.whole_first);
          while (j > last) {
            step(kWhole);
          }
        }
      }
      shared.v.wait(at);
      sums.add(tOrP, tOrV(_, _, _, at.stage));  // of the first key tile
      v_scale = shared.descales.at(at).v_scale;
      shared.v.release(at);
      at.advance();
    } else {
      shared.q[consumer].release(q_position(count));
    }
    Tensor rO = by_rows<MmaPv>(sums.tOrO);
    const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread_index()));
    finish_statistics<MmaPv>(p, tile, row0(), v_scale, cO, state, correction);
    scale_rows(rO, correction);
    if constexpr (kIsPlain) {
      shared.output.put(sums.tOrO, consumer, q_position(count));
    } else {
      finish_output<OutputConfig<Config, Output>>(shared.output, p, tile, row0(), consumer, at_o,
                                                  sums.tOrO, rO, cO);
    }
    __syncwarp();
    shared.tiles.release(tile_position(count));
  }
  ping_pong.end();
}

}  // namespace flash_fp8
}  // namespace tilewright::cuda
