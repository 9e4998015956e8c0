// A warp's step over 16 keys: S = Q K^T, the online softmax, and O += P V, of its 16 rows.
#pragma once

#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/fragments.cuh"
#include "cuda/attention/decode/results.cuh"
#include "cuda/attention/decode/seen_keys.cuh"

namespace tilewright::cuda {
namespace decode {

// A warp's rows and keys of its block's tiles. This thread has rows g and g + 8 of 16.
template <typename Config>
struct WarpPlace {
  using Form = WarpsForm<Config>;
  int row0 = static_cast<int>(threadIdx.x) / 32 % Form::kRowWarps * 16;
  int key0 = static_cast<int>(threadIdx.x) / 32 / Form::kRowWarps * Form::kWarpKeys;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;
  int t = static_cast<int>(threadIdx.x) % 4;

  __device__ int row(int half) const { return row0 + 8 * half + g; }
  // The key of score s[n][i], within the step.
  __device__ int key(int n, int i) const { return 8 * n + 2 * t + i % 2; }
};

// What a warp has of its 16 rows, from its keys. This thread has rows g and g + 8, and of O the
// columns that fragments give it.
template <typename Config>
struct WarpResult {
  float o[Config::C.value_dim / 8][4];
  float m[2];
  float l[2];
};

// Q as fragments of A, in registers or, of a wide head dim, in SMEM. Of an E4M3 cache, a thread's
// four bytes of every 16 are neighbours, and Q's values are in the order in which widen_even() and
// widen_odd() give them. E4M3 queries are widened here.
template <typename Config>
class QueryFragments {
 public:
  // The consumer's warps call it together.
  __device__ __forceinline__ QueryFragments(SharedStorage<Config>& shared, const Params& p,
                                            const Launch& launch, const Part& part,
                                            const WarpPlace<Config>& place)
      : shared_(shared) {
    if (has_e4m3_queries<Config>(p)) {
      load_all<std::uint8_t>(p, launch, part, place);
    } else {
      load_all<typename Config::Element>(p, launch, part, place);
    }
    if constexpr (Form::kQueriesInSmem) {
      sync_consumer<Config>();
    }
  }

  // Of the columns [16 k, 16 k + 16).
  __device__ __forceinline__ uint4 at(int k) const {
    if constexpr (Form::kQueriesInSmem) {
      constexpr int kRowWarps = Form::kRowWarps;
      return shared_.compute.queries.fragments[threadIdx.x / 32 % kRowWarps][k][threadIdx.x % 32];
    } else {
      return in_registers_[k];
    }
  }

 private:
  using Form = WarpsForm<Config>;
  static constexpr int kSteps = Config::C.head_dim / 16;

  // Of elements T, a byte of which is of E4M3. In place of a row that does not exist, the tile's
  // first one is computed, and never stored.
  template <typename T>
  __device__ __forceinline__ void load_all(const Params& p, const Launch& launch, const Part& part,
                                           const WarpPlace<Config>& place) {
    const T* rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Row row = row_of(part, launch.shape, place.row(half));
      row = row.exists ? row : row_of(part, launch.shape, 0);
      rows[half] = row_pointer<const T>(p.q, p.q_stride, part.sequence, row.token, row.head) +
                   (Config::kIsE4m3 ? 4 : 2) * place.t;
    }
    if constexpr (Form::kQueriesInSmem) {
      if (place.key0 == 0) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          shared_.compute.queries.fragments[place.row0 / 16][k][threadIdx.x % 32] = load(rows, k);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        in_registers_[k] = load(rows, k);
      }
    }
  }

  template <typename T>
  __device__ static uint4 load(const T* const (&rows)[2], int k) {
    uint2 words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const q = rows[half] + 16 * k;
      if constexpr (sizeof(T) == 1) {
        words[half] = widen_queries(__ldg(reinterpret_cast<const std::uint32_t*>(q)));
      } else if constexpr (Config::kIsE4m3) {
        const uint2 four = __ldg(reinterpret_cast<const uint2*>(q));
        words[half] = {__byte_perm(four.x, four.y, 0x5410), __byte_perm(four.x, four.y, 0x7632)};
      } else {
        words[half] = {__ldg(reinterpret_cast<const std::uint32_t*>(q)),
                       __ldg(reinterpret_cast<const std::uint32_t*>(q + 8))};
      }
    }
    return {words[0].x, words[1].x, words[0].y, words[1].y};
  }

  SharedStorage<Config>& shared_;
  uint4 in_registers_[Form::kQueriesInSmem ? 1 : kSteps];
};

// A step's scores, in fragments of D: each of eight keys.
using Scores = float[kStepKeys / 8][4];

// S of the step whose keys are the tile's rows from row0 on. Where there are registers for it, odd
// chunks of the head dim add up apart, so that a product does not wait for the one before.
template <typename Config>
__device__ __forceinline__ void compute_scores(
    Scores& s, const QueryFragments<Config>& q,
    const MatrixPlaces<Config::TileK::kRow_bytes, false>& places, std::uint32_t tile, int row0) {
  using Element = typename Config::Element;
  constexpr bool kApart = !WarpsForm<Config>::kQueriesInSmem;
  Scores other{};
  Scores& odd = kApart ? other : s;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    s[0][i] = s[1][i] = 0.0f;
  }
#pragma unroll
  for (int chunk = 0; chunk < Config::TileK::kChunks; chunk += 2) {
    std::uint32_t r[4];
    load_matrices(r, places.at(tile, row0, chunk));
    if constexpr (Config::kIsE4m3) {
      mma<Element>(s[0], q.at(chunk), widen_even<Element>(r[0]), widen_odd<Element>(r[0]));
      mma<Element>(s[1], q.at(chunk), widen_even<Element>(r[2]), widen_odd<Element>(r[2]));
      mma<Element>(odd[0], q.at(chunk + 1), widen_even<Element>(r[1]), widen_odd<Element>(r[1]));
      mma<Element>(odd[1], q.at(chunk + 1), widen_even<Element>(r[3]), widen_odd<Element>(r[3]));
    } else {
      Scores& sum = chunk % 4 == 0 ? s : odd;
      mma<Element>(sum[0], q.at(chunk / 2), r[0], r[1]);
      mma<Element>(sum[1], q.at(chunk / 2), r[2], r[3]);
    }
  }
  if constexpr (kApart) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[0][i] += odd[0][i];
      s[1][i] += odd[1][i];
    }
  }
}

// Scores become softcap * tanh(scale * s / softcap), by 1 - 2 / (1 + e^2x), which is as exact as
// FP32 allows.
__device__ inline void cap(Scores& s, float scale, float softcap) {
  const float factor = 2.0f * kLog2e * scale / softcap;
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = softcap * (1.0f - __fdividef(2.0f, 1.0f + exp2_approx(s[n][i] * factor)));
    }
  }
}

// Scores of keys that a row does not see become -infinity. Returns the bits of the keys that some
// row of the warp sees.
template <typename Config>
__device__ __forceinline__ std::uint32_t mask(Scores& s, const Params& p, const Launch& launch,
                                              const Part& part, const WarpPlace<Config>& place,
                                              int key0) {
  std::uint32_t seen = 0;  // 16 bits for each of the two rows
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    seen |= seen_keys(p, launch, part, place.row(half), key0) << 16 * half;
  }
  const std::uint32_t own = seen >> 2 * place.t;
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = own & (1u << (i / 2 * 16 + 8 * n + i % 2)) ? s[n][i] : kMinusInf;
    }
  }
  return __reduce_or_sync(0xffffffffu, seen | seen >> 16);
}

// Scales the scores of each key, or their exponentials, by the key's descale. That of a key which
// no query sees may be NaN: its score is masked later, and its exponential, a 0, stays one.
template <typename Config>
__device__ void scale_keys(Scores& s, const float* descales, const WarpPlace<Config>& place) {
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
    const auto pair = *reinterpret_cast<const float2*>(descales + place.key(n, 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = s[n][i] == 0.0f ? 0.0f : s[n][i] * (i % 2 == 0 ? pair.x : pair.y);
    }
  }
}

// One step of the online softmax: S becomes P = exp2((S - m) * scale_log2) under the new maxima m;
// l, this thread's sums, and O are scaled to them. A row that has seen no key keeps m = -infinity
// and P = 0.
template <typename Config>
__device__ __forceinline__ void softmax_step(Scores& s, WarpResult<Config>& result,
                                             float scale_log2) {
  float correction[2];
  bool moves = false;  // a row that has an O, whose reference moves
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float m = result.m[half];
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; ++n) {
      m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    const float reference = m == kMinusInf ? 0.0f : __fmul_rn(m, scale_log2);
    correction[half] = exp2_approx(__fmul_rn(result.m[half], scale_log2) - reference);
    moves |= m != result.m[half] && result.m[half] != kMinusInf;
    result.m[half] = m;
    result.l[half] *= correction[half];
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = exp2_approx(fmaf(s[n][i], scale_log2, -reference));
        result.l[half] += s[n][i];
      }
    }
  }
  if (__any_sync(0xffffffffu, moves)) {
#pragma unroll
    for (int j = 0; j < Config::C.value_dim / 8; ++j) {
      result.o[j][0] *= correction[0];
      result.o[j][1] *= correction[0];
      result.o[j][2] *= correction[1];
      result.o[j][3] *= correction[1];
    }
  }
}

// For the keys 2t, 2t + 1 and 2t + 8, 2t + 9 of a step: words that keep what some row sees of V.
struct ValueMask {
  std::uint32_t keep[2];

  __device__ ValueMask(std::uint32_t seen, int t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t pair = seen >> (2 * t + 8 * i);
      keep[i] = (pair & 1 ? 0x0000ffffu : 0u) | (pair & 2 ? 0xffff0000u : 0u);
    }
  }
};

// O += P V over a step's keys, from row row0 of the tile on. With kMasked, values whose bits are
// not in `seen` count as 0: they may be NaN, or another tile's.
template <typename Config, bool kMasked>
__device__ __forceinline__ void add_values(
    WarpResult<Config>& result, const Scores& s,
    const MatrixPlaces<Config::TileV::kRow_bytes, true>& places, std::uint32_t tile, int row0,
    const WarpPlace<Config>& place, std::uint32_t seen) {
  using Element = typename Config::Element;
  const uint4 a{pack_x2<Element>(s[0][0], s[0][1]), pack_x2<Element>(s[0][2], s[0][3]),
                pack_x2<Element>(s[1][0], s[1][1]), pack_x2<Element>(s[1][2], s[1][3])};
  const ValueMask mask(seen, place.t);
#pragma unroll
  for (int chunk = 0; chunk < Config::TileV::kChunks; chunk += 2) {
    std::uint32_t r[4];
    load_transposed(r, places.at(tile, row0, chunk));
    if constexpr (kMasked) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] &= mask.keep[i % 2];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t b0 = r[2 * i];
      const std::uint32_t b1 = r[2 * i + 1];
      if constexpr (Config::kIsE4m3) {
        const int j = 2 * (chunk + i);
        mma<Element>(result.o[j], a, widen_even<Element>(b0), widen_even<Element>(b1));
        mma<Element>(result.o[j + 1], a, widen_odd<Element>(b0), widen_odd<Element>(b1));
      } else {
        mma<Element>(result.o[chunk + i], a, b0, b1);
      }
    }
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
