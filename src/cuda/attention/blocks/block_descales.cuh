// Attention with descales of blocks of 64 or 128 rows, over key tiles of 128 keys of which the even
// ones come first (KeyOrder::kByKeys).
#pragma once

#include "common/descale_blocks.hpp"
#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/blocks/fp8_descale.cuh"
#include "cuda/attention/blocks/online_softmax.cuh"
#include "cuda/common/numeric.cuh"
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

// What a key tile's descales come to. V's are taken relative to the largest one so far, `v_scale`:
// P of a block is multiplied by its descale's share of it, and O is in units of it. Shares are at
// least 2^-32, which does not show in FP32.
struct TileDescales {
  float k[kBlocks];
  float p_log2[kBlocks];    // the factor of P: its share, and 2^kP_log2
  float l_weight[kBlocks];  // the shares' inverses: l is a sum without them
  float v_scale;
  float v_correction;  // the v_scale before, in units of this one
};

// Reads the descales of one key tile of a head after another. A thread with few registers does: it
// has one block at a time, and what it finds goes to SMEM.
class DescaleWalk {
 public:
  __device__ DescaleWalk(const AttentionFp8Params& p, int sequence, int kv_head, int kv_len)
      : p_(p), kv_len_(kv_len) {
    const int first = first_descale_block(p.kv_lengths.cu_seqlens, sequence, rows_of(p));
    k_ = first_descale(p.k_descale, sequence, first, kv_head);
    v_ = first_descale(p.v_descale, sequence, first, kv_head);
  }

  __device__ void write(int tile, TileDescales& descales) {
    const float before = v_scale_;
#pragma unroll 1
    for (int i = 0; i < kBlocks; ++i) {
      const int block = min(tile * kBc + i * kBlockRows, kv_len_ - 1) / rows_of(p_);
      descales.k[i] = k_ == nullptr ? 1.0f : k_[block * p_.k_descale.stride.seq];
      const float v = v_ == nullptr ? 1.0f : v_[block * p_.v_descale.stride.seq];
      descales.l_weight[i] = v;  // for now
      v_scale_ = fmaxf(v_scale_, v);
    }
#pragma unroll 1
    for (int i = 0; i < kBlocks; ++i) {
      constexpr float kLeastLog2 = -32.0f;
      const float share = v_scale_ == 0.0f ? 1.0f : __fdividef(descales.l_weight[i], v_scale_);
      const float share_log2 = fmaxf(__log2f(share), kLeastLog2);
      descales.p_log2[i] = kP_log2 + share_log2;
      descales.l_weight[i] = exp2_approx(-share_log2);
    }
    descales.v_scale = v_scale_;
    descales.v_correction = before == v_scale_ ? 1.0f : __fdividef(before, v_scale_);
  }

 private:
  __device__ static const float* first_descale(const Fp8Descales& descales, int sequence, int first,
                                               int head) {
    return descales.data == nullptr ? nullptr
                                    : descales.data + descales.offset(sequence, first, head);
  }

  const AttentionFp8Params& p_;
  int kv_len_;
  const float* k_;
  const float* v_;
  float v_scale_ = 0.0f;
};

// A thread's score number n, of those that it has of one row and one block of descales. S has even
// keys first, then odd ones, so that both halves of it have a part of each block.
__host__ __device__ constexpr int score_of(int block, int n) {
  constexpr int kRun = kBlockRows / 8;  // scores
  return n % kRun + kRun * block + kRun * kBlocks * (n / kRun);
}
constexpr int kBlockScores = kBlockRows / 4;  // of a row and a thread

// Caps the scores, whose blocks have scales of their own.
template <typename TensorS>
__device__ void cap_blocks(TensorS& rS, const float (&scale)[kBlocks], float softcap) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float factor = __fdividef(2.0f * kLog2e * scale[block], softcap);
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

// A step of the online softmax, as softmax_step(), where blocks of keys have scales of their own.
// m is in units of log2.
template <typename TiledMma, int kRows, typename TensorS>
__device__ void weigh(TensorS& rS, RowState<kRows>& state, const TileDescales& descales,
                      const float (&scale_log2)[kBlocks], float (&correction)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float m = i > 0 ? after(state.m[i], state.m[i - 1]) : state.m[i];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float s = kMinusInf;
#pragma unroll
      for (int n = 0; n < kBlockScores; ++n) {
        s = fmaxf(s, rS(i, score_of(block, n)));
      }
      m = fmaxf(m, s * scale_log2[block]);
    }
    const float m_new = row_max<TiledMma>(m);
    const float reference = m_new == kMinusInf ? 0.0f : m_new;
    correction[i] = exp2_approx(state.m[i] - reference);
    state.m[i] = m_new;
    state.l[i] *= correction[i];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float exponent = descales.p_log2[block] - reference;
      float l = 0.0f;
#pragma unroll
      for (int n = 0; n < kBlockScores; ++n) {
        float& p = rS(i, score_of(block, n));
        p = exp2_approx(fmaf(p, scale_log2[block], exponent));
        l += p;
      }
      state.l[i] = fmaf(l, descales.l_weight[block], state.l[i]);
    }
    correction[i] *= descales.v_correction;
  }
}

}  // namespace block_descales
}  // namespace tilewright::cuda
