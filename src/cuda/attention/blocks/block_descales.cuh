// Attention with descales of blocks of 64 or 128 rows, over key tiles of 128 keys of which the even
// ones come first (KeyOrder::kByKeys).
#pragma once

#include <cfloat>

#include "common/descale_blocks.hpp"
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/fp8_descale.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/common/copy_async.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/tma.cuh"
#include "ops/attention_fp8/params.hpp"

namespace tilewright::cuda {
namespace block_descales {

constexpr int kBc = 128;
constexpr int kBlockRows = 64;  // descales change after a multiple of these
constexpr int kBlocks = kBc / kBlockRows;

// The rows of a block; any number of 64 serves where there are no blocks.
__device__ inline int rows_of(const AttentionFp8Params& p) {
  return p.descale_rows == 128 ? 128 : kBlockRows;
}

// The number that a query row's scores are multiplied by, before the descale of their key.
__device__ inline float query_scale(const AttentionFp8Params& p, int sequence, int head, int row) {
  const int rows = rows_of(p);
  const int first = first_descale_block(p.packed_q.cu_seqlens, sequence, rows);
  return p.scale * descale_at(p.q_descale, sequence, first, head, row / rows);
}

// Descales have twice as many places as K has stages. Those of a tile are fetched when K and V of
// the tile before have been asked for. By then every consumer has released K of kStages tiles
// before that one, and is done with the tiles before it.
template <typename TileDescales, int kStages>
struct DescaleRing {
  static_assert(kStages >= 2);
  TileDescales places[2 * kStages];

  __device__ TileDescales& at(const RingPosition<kStages>& position) {
    return places[kStages * static_cast<int>(position.phase) + position.stage];
  }
};

// Where the descales of a sequence's keys and values lie, of one head. Null: they are 1.
struct HeadDescales {
  const float* k;
  const float* v;

  __device__ static HeadDescales of(const AttentionFp8Params& p, int sequence, int kv_head) {
    const int first = first_descale_block(p.kv_lengths.cu_seqlens, sequence, rows_of(p));
    const auto place = [&](const Fp8Descales& descales) {
      return descales.data == nullptr ? nullptr
                                      : descales.data + descales.offset(sequence, first, kv_head);
    };
    return {place(p.k_descale), place(p.v_descale)};
  }
};

// A thread asks for the descales of a key tile's blocks. It waits for them by wait_for_copies().
__device__ inline void fetch_descales(const AttentionFp8Params& p, const HeadDescales& head,
                                      int kv_len, int tile, float (&k)[kBlocks],
                                      float (&v)[kBlocks]) {
  const int rows_log2 = rows_of(p) == 128 ? 7 : 6;
  const auto fetch = [](const float* source, std::int64_t offset, float& target) {
    if (source == nullptr) {
      target = 1.0f;
    } else {
      copy_async<4>(cute::cast_smem_ptr_to_uint(&target), source + offset, true);
    }
  };
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int block = min(tile * kBc + i * kBlockRows, kv_len - 1) >> rows_log2;
    fetch(head.k, block * p.k_descale.stride.seq, k[i]);
    fetch(head.v, block * p.v_descale.stride.seq, v[i]);
  }
}

// A thread's score number n, of those that it has of one row and one block of descales. S has even
// keys first, then odd ones, so that both halves of it have a part of each block.
__host__ __device__ constexpr int score_of(int block, int n) {
  constexpr int kRun = kBlockRows / 8;  // scores
  return n % kRun + kRun * block + kRun * kBlocks * (n / kRun);
}
constexpr int kBlockScores = kBlockRows / 4;  // of a row and a thread

// What scores of keys of each block are multiplied by, in units of log2, where that of the queries
// is `q_scale_log2`. Masked scores are -infinity, and stay so, as the scale is not 0 then.
template <bool kIsMasked>
__device__ void find_scales(const float (&k_descale)[kBlocks], float q_scale_log2,
                            float (&scale_log2)[kBlocks]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float scale = q_scale_log2 * k_descale[block];
    scale_log2[block] = kIsMasked ? fmaxf(scale, FLT_MIN) : scale;
  }
}

// Caps the scores, whose blocks have scales of their own.
template <typename TensorS>
__device__ void cap_blocks(TensorS& rS, const float (&scale_log2)[kBlocks], float softcap) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float factor = __fdividef(2.0f * scale_log2[block], softcap);
#pragma unroll
    for (int i = 0; i < cute::size<0>(rS); ++i) {
#pragma unroll
      for (int n = 0; n < kBlockScores; ++n) {
        float& s = rS(i, score_of(block, n));
        s = capped(s, factor, softcap);
      }
    }
  }
}

// A row that has seen no key has the maximum -infinity, and 0 in its place in exponents. Where
// scores are not masked, there is no such row.
template <bool kIsMasked>
__device__ float reference_of(float m) {
  return kIsMasked && m == kMinusInf ? 0.0f : m;
}

// A step of the online softmax, as softmax_step(), where blocks of keys have scales of their own:
// first a row's new maximum, in units of log2, and the factor of what was summed under the one
// before. Two chains of comparisons for each block take half as long as one.
template <typename TiledMma, bool kIsMasked = true, int kRows, typename TensorS>
__device__ void move_maximum(const TensorS& rS, int row, float (&max)[kRows],
                             const float (&scale_log2)[kBlocks], float (&correction)[kRows]) {
  float m = row > 0 ? after(max[row], max[row - 1]) : max[row];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    float s[] = {rS(row, score_of(block, 0)), rS(row, score_of(block, 1))};
#pragma unroll
    for (int n = 2; n < kBlockScores; ++n) {
      s[n % 2] = fmaxf(s[n % 2], rS(row, score_of(block, n)));
    }
    m = fmaxf(m, fmaxf(s[0], s[1]) * scale_log2[block]);
  }
  const float m_new = row_max<TiledMma>(m);
  correction[row] = exp2_approx(max[row] - reference_of<kIsMasked>(m_new));
  max[row] = m_new;
}

// Then its scores of a block become P, times 2^p_log2. Returns their sum.
template <bool kIsMasked = true, typename TensorS>
__device__ float weigh(TensorS& rS, int row, int block, float max, float scale_log2, float p_log2) {
  const float exponent = p_log2 - reference_of<kIsMasked>(max);
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kBlockScores; ++n) {
    float& p = rS(row, score_of(block, n));
    p = exp2_approx(fmaf(p, scale_log2, exponent));
    sum = n == 0 ? p : sum + p;
  }
  return sum;
}

}  // namespace block_descales
}  // namespace tilewright::cuda
