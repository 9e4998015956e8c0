// The consumers of flash_fp8: K8's loop, persistent, with the features chosen at run time.
#pragma once

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/flash_consumer.cuh"
#include "cuda/attention/blocks/flash_finish.cuh"
#include "cuda/attention/blocks/ping_pong.cuh"
#include "cuda/attention/flash_fp8/config.cuh"
#include "cuda/attention/flash_fp8/promoted_sums.cuh"
#include "cuda/common/wgmma_wait.cuh"

namespace tilewright::cuda {
namespace flash_fp8 {

// Stores the results of the rows from row0 on, and finds the factors that O must be scaled by. O is
// in units of `unit`, and O and l have P's factor. `l` is of whole rows.
template <int kRows, typename TensorC>
__device__ __forceinline__ void finish_statistics(const AttentionFp8Params& p, const Tile& tile,
                                                  int row0, float unit, const TensorC& cO,
                                                  const float (&m)[kRows], const float (&l)[kRows],
                                                  float (&factor)[kRows]) {
  constexpr float kInverseFactor = 1.0f / (1 << kP_log2);
  RowResult result[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    result[i] = {
        .m = m[i] * (1.0f / kLog2e), .l = l[i] * kInverseFactor, .rescale = unit * kInverseFactor};
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
  using Sums = PromotedSums<Config>;
  constexpr int kLastPart = Sums::kParts - 1;
  constexpr int kBc = Config::C.bc;
  constexpr int kRows = Sums::kRows;
  constexpr bool kKeepsTurn = Config::kConsumers == 3;  // until S is there
  constexpr bool kOverlaps =
      kLastPart == 0 && Config::kConsumers == 2 && (kIsPlain || Config::C.head_dim == 64);

  const Tensor tSrQ = T::operand_q(shared.sQ[consumer]);
  const Tensor tSrK = T::operand_k(shared.sK[0]);
  const ValueOperand<Config> values(shared.sV[0]);
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
    float m[kRows] = {kMinusInf, kMinusInf};  // the maxima, in units of log2
    float correction[kRows];
    float unit = 1.0f;

    // S of key tile j becomes P.
    const auto softmax = [&](auto scores, auto waits) __attribute__((always_inline)) {
      constexpr Scores kScores = scores;
      constexpr bool kWaits = decltype(waits)::value;
      constexpr bool kIsMasked = kScores != Scores::whole;
      float scale_log2[kBlocks];
      block_descales::find_scales<kIsMasked>(shared.descales.at(at).k, q_scale_log2, scale_log2);
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
        block_descales::move_maximum<MmaQk, kIsMasked>(rS, row, m, scale_log2, correction);
        if constexpr (!Sums::kSumsWeights) {
          sums.l[row] *= correction[row];
        }
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const float sum =
              block_descales::weigh<kIsMasked>(rS, row, block, m[row], scale_log2[block], kP_log2);
          if constexpr (!Sums::kSumsWeights) {
            sums.l[row] += sum;
          }
          if (kWaits && row == 1 && block == 0) {
            constexpr int kLastScore =
                block_descales::score_of(0, block_descales::kBlockScores - 1);
            wait_no_earlier_than_store(rS(row, kLastScore));
            sums.template wait<0>();
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

      // If the values of a tile's blocks have different descales, adds P V of the first block, so
      // that what is left is that of the second.
      const auto split_blocks = [&](const typename Config::Position& tile_at) {
        const TileDescales& descales = shared.descales.at(tile_at);
        if (p.descale_rows == block_descales::kBlockRows &&
            __any_sync(0xffffffffu, descales.blocks_differ())) {
          constexpr int kFraction = kBlocks;
          sums.template add_but_last<kFraction>(tOrP, values, tile_at.stage);
          sums.template promote<kLastPart>();
          sums.set_units({1.0f, 1.0f}, descales.unit_ratio[1]);
#pragma unroll
          for (int i = 0; i < size(tOrP) / kFraction; ++i) {
            tOrP(i) = typename Config::Element{};
          }
        }
      };

      // A step over key tile j: it adds P V of tile j + 1 to O, and computes P of tile j.
      const auto step = [&](auto scores) __attribute__((always_inline)) {
        --j;
        const typename Config::Position at_v = at;
        at.advance();
        shared.v.wait(at_v);
        if constexpr (Config::template may_split<kIsPlain>()) {
          split_blocks(at_v);
        }
        ping_pong.wait();
        if constexpr (kOverlaps) {
          shared.k.wait(at);
          wgmma_issue<false>(MmaQk{}, tSrQ, tSrK(_, _, _, at.stage), tSrS);
          sums.template issue<0>(tOrP, values, at_v.stage);
          ping_pong.pass();
          wgmma_wait<1>(tSrS);
        } else {
          sums.add_but_last(tOrP, values, at_v.stage);
          sums.template promote<kLastPart>();
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
          sums.template promote<0>();
        }
        sums.set_units(correction, shared.descales.at(at).unit_ratio[0]);
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
      if constexpr (Config::template may_split<kIsPlain>()) {
        split_blocks(at);
      }
      sums.add_but_last(tOrP, values, at.stage);  // of the first key tile
      sums.template promote<kLastPart>();
      unit = shared.descales.at(at).unit;
      shared.v.release(at);
      at.advance();
    } else {
      shared.q[consumer].release(q_position(count));
    }
    Tensor rO = by_rows<MmaPv>(sums.tOrO);
    const Tensor cO = by_rows<MmaPv>(T::output_coordinates(thread_index()));
    if constexpr (!Sums::kSumsWeights) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        sums.l[i] = row_sum<MmaQk>(sums.l[i]);
      }
    }
    finish_statistics(p, tile, row0(), unit, cO, m, sums.l, correction);
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
