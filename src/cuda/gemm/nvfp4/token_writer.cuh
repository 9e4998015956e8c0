// NVFP4 tokens on their way to SMEM: a warpgroup beside the loading one reads codes and scales, and
// writes the BF16 numbers where the copy engine would bring them.
//
// A thread has the same block of 16 columns in every chunk, of every few tokens. It asks for what
// it writes next as soon as it has the registers for that, before the stage is empty.
#pragma once

#include <algorithm>

#include "common/nvfp4_recipe.hpp"
#include "common/scale_layout.hpp"
#include "cuda/gemm/nvfp4/kernel_params.cuh"
#include "cuda/gemm/nvfp4/shape.cuh"
#include "cuda/gemm/nvfp4/token_codes.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

template <typename S>
class TokenWriter {
 public:
  // Asks for the first chunks.
  __device__ __forceinline__ TokenWriter(SharedStorage<S>& shared, const KernelParams& p)
      : shared_(shared), p_(p), walk_(p.schedule, static_cast<int>(blockIdx.x)) {
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) {
      Chunk& chunk = chunks_[turn];
      chunk.tokens = advance();
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        chunk.items[i] = load(i, chunk.tokens);
      }
    }
  }

  __device__ __forceinline__ void run() {
    typename SharedStorage<S>::Position at;
    while (true) {
#pragma unroll
      for (int turn = 0; turn < kAhead; ++turn) {
        Chunk& chunk = chunks_[turn];
        if (chunk.tokens == 0) {
          return;
        }
        shared_.ring.wait_until_empty(at);
        const int next_tokens = advance();
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (token_of(i) < chunk.tokens) {
            store(i, chunk.items[i], at.stage);
          }
          chunk.items[i] = load(i, next_tokens);
        }
        chunk.tokens = next_tokens;
        shared_.ring.written(at);
        at.advance();
      }
    }
  }

 private:
  static constexpr Nvfp4Choice C = S::C;
  static constexpr int kBlocks = C.columns() / nvfp4::kBlock;  // of a token, in a chunk
  static constexpr int kTokenStep = S::kWriterThreads / kBlocks;
  static constexpr int kItems = C.tokens / kTokenStep;    // of a thread, in a chunk
  static constexpr int kAhead = std::max(1, 4 / kItems);  // chunks on their way
  static constexpr int kLinePieces = 8;
  static constexpr int kStagePieces = S::kColumnSteps * C.tokens * kLinePieces;
  static constexpr int kStepBlocks = WeightTile::kColumns / nvfp4::kBlock;
  static_assert(S::kWriterThreads % kBlocks == 0 && C.tokens % kTokenStep == 0);
  static_assert(32 % C.tokens == 0, "swizzled scales of a tile's tokens lie in equal steps");

  struct Item {
    uint2 codes;
    std::uint32_t scale;
  };

  struct Chunk {
    Item items[kItems];
    int tokens;  // that there are; 0 behind the last chunk
  };

  __device__ static int block() { return static_cast<int>(threadIdx.x % kBlocks); }
  __device__ static int token_of(int item) {
    return static_cast<int>(threadIdx.x % S::kWriterThreads / kBlocks) + item * kTokenStep;
  }

  // Goes on to the next chunk of the walk. Returns how many tokens that has.
  __device__ __forceinline__ int advance() {
    const bool is_linear = p_.gemm.sfa.layout == ScaleLayout::linear;
    if (++chunk_ < part_.end) {
      codes_ += kBlocks * (nvfp4::kBlock / 2);
      scales_ += is_linear ? kBlocks : static_cast<int>(swizzled_offset(0, kBlocks, 0));
      return tokens_;
    }
    part_ = {};
    tokens_ = 0;
    if (TilePart part{}; walk_.next(p_.schedule, part)) {
      start(part);
    }
    return tokens_;
  }

  __device__ __forceinline__ void start(const TilePart& part) {
    const GemmNvfp4Params& gemm = p_.gemm;
    part_ = part;
    chunk_ = part.begin;
    const TileOrigin origin = origin_of<S>(p_.order, part.tile);
    tokens_ = min(C.tokens, gemm.m - origin.token);
    const int row = origin.token + token_of(0);
    const int first = chunk_ * kBlocks + block();
    codes_ = static_cast<const std::uint8_t*>(gemm.a) + origin.batch * gemm.a_stride.batch +
             row * gemm.a_stride.row + first * (nvfp4::kBlock / 2);
    scales_ = &gemm.sfa.at(row, first) + origin.batch * gemm.sfa_batch_stride;
  }

  // Zeros beyond K.
  __device__ __forceinline__ Item load(int item, int tokens) const {
    Item loaded{};
    if (token_of(item) < tokens && chunk_ * kBlocks + block() < p_.gemm.k / nvfp4::kBlock) {
      const Scales<const std::uint8_t>& sfa = p_.gemm.sfa;
      const std::int64_t scale_step =
          sfa.layout == ScaleLayout::linear ? sfa.row_stride : swizzled_offset(1, 0, 0);
      const int step = item * kTokenStep;
      loaded.codes = __ldg(reinterpret_cast<const uint2*>(codes_ + step * p_.gemm.a_stride.row));
      loaded.scale = __ldg(scales_ + step * scale_step);
    }
    return loaded;
  }

  // The pieces of a stage: eight for a token in a step of 64 columns, swizzled by the token. Of an
  // item's two, the one that goes first is the second in every other step, so that no two of eight
  // neighbouring threads write to one bank.
  __device__ __forceinline__ void store(int item, const Item& loaded, int stage) const {
    const bool second_first = block() / kStepBlocks % 2 != 0;
    const int token = token_of(0);
    const int line = block() / kStepBlocks * C.tokens + token;
    const int place = line * kLinePieces +
                      ((block() % kStepBlocks * 2 + (second_first ? 1 : 0)) ^ token % kLinePieces);
    // Of the other items the line and the swizzle differ by what is the same in all threads.
    const int step = item * kTokenStep;
    const int first = (stage * kStagePieces + place) ^ step % kLinePieces;
    auto* const pieces = reinterpret_cast<uint4*>(shared_.sA) + step * kLinePieces;
    const __nv_bfloat162 scale = scale_pair(loaded.scale);
    const auto [x, y] = loaded.codes;
    pieces[first] = dequantize_codes(second_first ? y : x, scale);
    pieces[first ^ 1] = dequantize_codes(second_first ? x : y, scale);
  }

  SharedStorage<S>& shared_;
  const KernelParams& p_;
  PartWalk walk_;
  TilePart part_{};
  int chunk_ = 0;
  int tokens_ = 0;                       // of the tile
  const std::uint8_t* codes_ = nullptr;  // of the thread's first item
  const std::uint8_t* scales_ = nullptr;
  Chunk chunks_[kAhead];
};

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
