// Attention on CUDA cores: a group of neighbouring lanes computes each query row of a tile.
//
// With kLanes = 4, lane c of row r computes the scores of every fourth quadruple of keys,
//
//     key  0 1 2 3 | 4 5 6 7 | 8 ...  15 | 16 17 18 19 | ...
//     lane 0 0 0 0 | 1 1 1 1 | 2 ...   3 |  0  0  0  0 | ...
//
// and the output columns of every fourth vector of eight columns. The lanes combine the row's
// statistics by shuffles. Tiles in SMEM are plain row-major.
#pragma once

#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/numeric.cuh"

namespace tilewright::cuda {

template <AttnConfig C>
struct RowGroup {
  static constexpr int kLanes = C.threads / C.br;
  static constexpr int kScores = C.bc / kLanes;                   // scores of one lane
  static constexpr int kVector = 8;                               // BF16 values in 16 bytes
  static constexpr int kVectors = C.head_dim / kVector / kLanes;  // output vectors of one lane
  static_assert(kScores % 4 == 0 && kVectors >= 1);

  int row;   // of the tile
  int lane;  // of the row's lanes

  float m = kMinusInf;  // running maximum of the row's scores, in base-2 units
  float l = 0.0f;       // running sum of exp2(score - m)
  float o[kVectors][kVector] = {};

  __device__ explicit RowGroup(int thread) : row(thread / kLanes), lane(thread % kLanes) {}

  // The key (column of the tile) of the lane's score j.
  __device__ int key(int j) const { return 4 * (lane + kLanes * (j / 4)) + j % 4; }

  // s[j] = Q[row] . K[key(j)]. Each lane starts at a different 16-byte vector of the head dim, so
  // that the eight lanes whose reads are served together touch eight different bank groups.
  __device__ void scores(const __nv_bfloat16* sQ, const __nv_bfloat16* sK,
                         float (&s)[kScores]) const {
    constexpr int kSteps = C.head_dim / kVector;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      s[j] = 0.0f;
    }
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      const int d = (step + static_cast<int>(threadIdx.x)) % kSteps * kVector;
      const Float8 q = load_bf16x8(sQ + row * C.head_dim + d);
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        const Float8 k = load_bf16x8(sK + key(j) * C.head_dim + d);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          s[j] = fmaf(q.value[i], k.value[i], s[j]);
        }
      }
    }
  }

  // s <- S[row] for the lane's keys.
  __device__ void load_scores(const float* sS, float (&s)[kScores]) const {
#pragma unroll
    for (int j = 0; j < kScores; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(sS + row * C.bc + key(j));
      s[j] = quad.x;
      s[j + 1] = quad.y;
      s[j + 2] = quad.z;
      s[j + 3] = quad.w;
    }
  }

  // s <- scale * s for the tile's first `limit` keys, and -infinity for the others.
  __device__ void scale_and_mask(float (&s)[kScores], float scale_log2, int limit) const {
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      s[j] = key(j) < limit ? s[j] * scale_log2 : kMinusInf;
    }
  }

  // One step of the online softmax: s becomes exp2(s - m) under the new maximum m, and l and o are
  // scaled to it. A row that has seen no key keeps m = -infinity and s = 0.
  __device__ void online_softmax(float (&s)[kScores]) {
    float m_new = m;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      m_new = fmaxf(m_new, s[j]);
    }
    m_new = group_reduce(m_new, [](float a, float b) { return fmaxf(a, b); });
    const float reference = m_new == kMinusInf ? 0.0f : m_new;
    const float correction = exp2_approx(m - reference);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      s[j] = exp2_approx(s[j] - reference);
      sum += s[j];
    }
    m = m_new;
    l = l * correction + group_reduce(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        o[c][i] *= correction;
      }
    }
  }

  // sP[row] <- s, in quadruples.
  __device__ void store_probabilities(float* sP, const float (&s)[kScores]) const {
#pragma unroll
    for (int j = 0; j < kScores; j += 4) {
      *reinterpret_cast<float4*>(sP + row * C.bc + key(j)) =
          make_float4(s[j], s[j + 1], s[j + 2], s[j + 3]);
    }
  }

  // o += P[row] V for the lane's columns.
  __device__ void accumulate(const float* sP, const __nv_bfloat16* sV) {
#pragma unroll 2
    for (int j = 0; j < C.bc; j += 4) {
      const float4 p = *reinterpret_cast<const float4*>(sP + row * C.bc + j);
      const float probability[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
      for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
        for (int c = 0; c < kVectors; ++c) {
          const Float8 v = load_bf16x8(sV + (j + jj) * C.head_dim + column(c));
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            o[c][i] = fmaf(probability[jj], v.value[i], o[c][i]);
          }
        }
      }
    }
  }

  // O <- o / l, or 0 for a row that saw no key. The row's first lane stores its LSE.
  __device__ void finalize(const AttentionParams& p, const TileWalk& walk) const {
    const int q_row = walk.row0 + row;
    if (q_row >= p.q_len) {
      return;
    }
    const float inverse_l = l == 0.0f ? 0.0f : 1.0f / l;
    auto* const out = row_pointer<__nv_bfloat16>(p.o, p.o_stride, walk.batch, q_row, walk.head);
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      uint4 packed;
      packed.x = pack_bf16x2(o[c][0] * inverse_l, o[c][1] * inverse_l);
      packed.y = pack_bf16x2(o[c][2] * inverse_l, o[c][3] * inverse_l);
      packed.z = pack_bf16x2(o[c][4] * inverse_l, o[c][5] * inverse_l);
      packed.w = pack_bf16x2(o[c][6] * inverse_l, o[c][7] * inverse_l);
      *reinterpret_cast<uint4*>(out + column(c)) = packed;
    }
    if (p.lse != nullptr && lane == 0) {
      *row_pointer<float>(p.lse, p.lse_stride, walk.batch, q_row, walk.head) =
          log_sum_exp(m, l, 1.0f / kLog2e);
    }
  }

 private:
  // The first output column of the lane's vector c.
  __device__ int column(int c) const { return kVector * (lane + kLanes * c); }

  template <typename Op>
  __device__ static float group_reduce(float value, Op op) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }
};

}  // namespace tilewright::cuda
