// Attention on the CPU: FlashAttention-2's tiling in FP32, on all cores.
//
// A task is a tile of query rows of one head; it walks that head's keys tile by tile with the
// online softmax, as the GPU rungs do:
//
//   pack Q (scaled by scale * log2 e)                         (Br, D)
//   for each key tile:
//     pack K transposed, pack V                               (D, Bc), (Bc, D)
//     S = Q K^T | cap | P = exp2(S - m), l, rescale O | O += P V
//   sink | O / l, LSE
//
// Source    FlashAttention-2, algorithm 1.
// Tiles     Br = 192 rows, or 48 where there would be too few tasks for the cores; Bc = 128.
// Scratch   per thread 4 (Br (2 D + Bc + 2) + 2 D Bc) bytes, kept between calls: 420 KB at D = 128,
//           independent of the lengths, so that a tile's work stays in the L2 cache.
// Packing   brings any dtype and strides to dense FP32, D padded with zeros to a multiple of 16.
// Registers a block of C: 12 rows x 16 columns with AVX-512, 6 x 16 with AVX2 and elsewhere.
// Limits    BF16 and FP16 gain no speed over FP32: they are converted when packed. The soft cap's
// tanh
//           is taken one score at a time and costs more than all else.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/half.hpp"
#include "cpu/cpu_attention.hpp"
#include "cpu/vector.hpp"

namespace tilewright::cpu {
namespace {

constexpr int kBc = 128;
constexpr int kLargeBr = 192;
constexpr int kSmallBr = 48;
constexpr double kLog2e = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

struct Fp16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

TILEWRIGHT_INLINE float to_float(float value) { return value; }
TILEWRIGHT_INLINE float to_float(Fp16 value) { return fp16_to_float(value.bits); }
TILEWRIGHT_INLINE float to_float(Bf16 value) { return bf16_to_float(value.bits); }
TILEWRIGHT_INLINE void from_float(float value, float& out) { out = value; }
TILEWRIGHT_INLINE void from_float(float value, Fp16& out) { out.bits = float_to_fp16(value); }
TILEWRIGHT_INLINE void from_float(float value, Bf16& out) { out.bits = float_to_bf16(value); }

int round_up(int value, int step) { return (value + step - 1) / step * step; }

// One task: `rows` queries from row0 on, of one head.
struct Task {
  int batch;
  int head;
  int row0;
  int rows;
};

// A thread's working memory.
struct Scratch {
  std::vector<float> q, kt, v, s, o, m, l;

  void reserve(int br, int padded_dim) {
    const auto grow = [](std::vector<float>& buffer, int size) {
      if (buffer.size() < static_cast<std::size_t>(size)) {
        buffer.resize(static_cast<std::size_t>(size));
      }
    };
    grow(q, br * padded_dim);
    grow(o, br * padded_dim);
    grow(kt, padded_dim * kBc);
    grow(v, kBc * padded_dim);
    grow(s, br * kBc);
    grow(m, br);
    grow(l, br);
  }
};

template <typename T>
TILEWRIGHT_INLINE const T* row_of(const void* base, const OuterStrides& stride, int batch, int seq,
                                  int head) {
  return static_cast<const T*>(base) + batch * stride.batch + seq * stride.seq + head * stride.head;
}

// The keys [first, end) that a row sees; none where end <= first.
struct Keys {
  int first;
  int end;
};

Keys visible_keys(const AttentionParams& p, int row) {
  const int here = row + p.kv_len - p.q_len;
  const int right = p.causal ? 0 : p.window_right;
  return {.first = std::max(here - p.window_left, 0), .end = std::min(here + right + 1, p.kv_len)};
}

// Rows to dense FP32, scaled, columns from head_dim on zero.
template <typename T>
TILEWRIGHT_INLINE void pack_rows(const T* source, std::int64_t row_stride, int rows, int dim,
                                 int padded_dim, float scale, float* target) {
  for (int i = 0; i < rows; ++i, source += row_stride, target += padded_dim) {
    for (int d = 0; d < dim; ++d) {
      target[d] = scale * to_float(source[d]);
    }
    std::fill(target + dim, target + padded_dim, 0.0f);
  }
}

// Keys as columns: target is (dim, kBc). Columns beyond `rows` are zero up to the vector width.
template <typename T>
TILEWRIGHT_INLINE void pack_transposed(const T* source, std::int64_t row_stride, int rows, int dim,
                                       float* target) {
  for (int j0 = 0; j0 < rows; j0 += kLanes) {  // 16 keys a time: whole vectors of the target
    const int count = std::min(kLanes, rows - j0);
    for (int d = 0; d < dim; ++d) {
      float* const column = target + d * kBc + j0;
      for (int j = 0; j < count; ++j) {
        column[j] = to_float(source[(j0 + j) * row_stride + d]);
      }
      std::fill(column + count, column + kLanes, 0.0f);
    }
  }
}

// One row's step of the online softmax: S becomes P in the columns [first, end), 0 in the others.
TILEWRIGHT_INLINE void online_softmax_row(float* s, int first, int end, int columns, float& m,
                                          float& l, float* o, int padded_dim) {
  if (end <= first) {
    std::fill(s, s + columns, 0.0f);
    return;
  }
  const float minus_inf = -std::numeric_limits<float>::infinity();
  std::fill(s, s + first, minus_inf);
  std::fill(s + end, s + columns, minus_inf);
  Floats row_max = Floats{} + m;
  for (int j = 0; j < columns; j += kLanes) {
    Floats x;
    load(s + j, x);
    row_max = x > row_max ? x : row_max;
  }
  float m_new = m;
  for (int i = 0; i < kLanes; ++i) {
    m_new = std::max(m_new, row_max[i]);
  }
  Floats sum{};
  for (int j = 0; j < columns; j += kLanes) {
    Floats x;
    load(s + j, x);
    x -= m_new;
    exp2_in_place(x);
    sum += x;
    store(s + j, x);
  }
  const float correction = std::exp2(m - m_new);  // 0 where m was -infinity
  if (correction != 1.0f) {
    l *= correction;
    for (int d = 0; d < padded_dim; ++d) {
      o[d] *= correction;
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    l += sum[i];
  }
  m = m_new;
}

// Counts a row's sink, a logit in base 2, as one more key of value 0.
TILEWRIGHT_INLINE void add_sink(float sink, float& m, float& l, float* o, int padded_dim) {
  const float m_new = std::max(m, sink);
  if (m_new == -std::numeric_limits<float>::infinity()) {
    return;
  }
  const float correction = std::exp2(m - m_new);
  l = l * correction + std::exp2(sink - m_new);
  for (int d = 0; d < padded_dim; ++d) {
    o[d] *= correction;
  }
  m = m_new;
}

template <typename T>
TILEWRIGHT_INLINE void write_rows(const AttentionParams& p, const Task& task,
                                  const Scratch& scratch, int padded_dim) {
  for (int i = 0; i < task.rows; ++i) {
    const float l = scratch.l[i];
    const float inverse_l = l > 0.0f ? 1.0f / l : 0.0f;
    T* const out = const_cast<T*>(row_of<T>(p.o, p.o_stride, task.batch, task.row0 + i, task.head));
    for (int d = 0; d < p.head_dim; ++d) {
      from_float(scratch.o[i * padded_dim + d] * inverse_l, out[d]);
    }
    if (p.lse != nullptr) {
      p.lse[task.batch * p.lse_stride.batch + task.head * p.lse_stride.head +
            (task.row0 + i) * p.lse_stride.seq] =
          l > 0.0f ? static_cast<float>(kLn2 * scratch.m[i] + std::log(l))
                   : -std::numeric_limits<float>::infinity();
    }
  }
}

template <typename T, int kRows>
TILEWRIGHT_INLINE void attend(const AttentionParams& p, const Task& task, Scratch& scratch) {
  const int dim = p.head_dim;
  const int padded_dim = round_up(dim, kLanes);
  const int kv_head = task.head / (p.heads / p.kv_heads);
  // Scores in base 2, or with a cap as tanh's argument.
  const bool is_capped = p.softcap > 0;
  const auto score_scale = static_cast<float>(is_capped ? p.scale / p.softcap : p.scale * kLog2e);
  pack_rows(row_of<T>(p.q, p.q_stride, task.batch, task.row0, task.head), p.q_stride.seq, task.rows,
            dim, padded_dim, score_scale, scratch.q.data());
  std::fill_n(scratch.o.begin(), task.rows * padded_dim, 0.0f);
  std::fill_n(scratch.m.begin(), task.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.l.begin(), task.rows, 0.0f);

  const int kv_end = visible_keys(p, task.row0 + task.rows - 1).end;
  for (int key0 = visible_keys(p, task.row0).first; key0 < kv_end; key0 += kBc) {
    const int keys = std::min(kBc, kv_end - key0);
    const int columns = round_up(keys, kLanes);
    pack_transposed(row_of<T>(p.k, p.k_stride, task.batch, key0, kv_head), p.k_stride.seq, keys,
                    dim, scratch.kt.data());
    pack_rows(row_of<T>(p.v, p.v_stride, task.batch, key0, kv_head), p.v_stride.seq, keys, dim,
              padded_dim, 1.0f, scratch.v.data());
    multiply<kRows, false>(scratch.q.data(), padded_dim, scratch.kt.data(), kBc, scratch.s.data(),
                           kBc, task.rows, columns, dim);
    for (int i = 0; i < task.rows; ++i) {
      float* const s = scratch.s.data() + i * kBc;
      const Keys seen = visible_keys(p, task.row0 + i);
      const int first = std::clamp(seen.first - key0, 0, keys);
      const int end = std::clamp(seen.end - key0, 0, keys);
      if (is_capped) {
        for (int j = first; j < end; ++j) {
          s[j] = static_cast<float>(p.softcap * kLog2e) * std::tanh(s[j]);
        }
      }
      online_softmax_row(s, first, end, columns, scratch.m[i], scratch.l[i],
                         scratch.o.data() + i * padded_dim, padded_dim);
    }
    multiply<kRows, true>(scratch.s.data(), kBc, scratch.v.data(), padded_dim, scratch.o.data(),
                          padded_dim, task.rows, padded_dim, keys);
  }
  if (p.sinks != nullptr) {
    const auto sink = static_cast<float>(p.sinks[task.head * p.sinks_stride] * kLog2e);
    for (int i = 0; i < task.rows; ++i) {
      add_sink(sink, scratch.m[i], scratch.l[i], scratch.o.data() + i * padded_dim, padded_dim);
    }
  }
  write_rows<T>(p, task, scratch, padded_dim);
}

template <int kRows>
TILEWRIGHT_INLINE void attend_any(const AttentionParams& p, const Task& task, Scratch& scratch) {
  switch (p.dtype) {
    case DType::fp32:
      return attend<float, kRows>(p, task, scratch);
    case DType::fp16:
      return attend<Fp16, kRows>(p, task, scratch);
    case DType::bf16:
      return attend<Bf16, kRows>(p, task, scratch);
  }
}

using Attend = void (*)(const AttentionParams&, const Task&, Scratch&);

void attend_portable(const AttentionParams& p, const Task& task, Scratch& scratch) {
  attend_any<6>(p, task, scratch);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void attend_avx2(const AttentionParams& p, const Task& task,
                                                     Scratch& scratch) {
  attend_any<6>(p, task, scratch);
}

__attribute__((target("avx512f,avx512dq,avx512vl,fma"))) void attend_avx512(
    const AttentionParams& p, const Task& task, Scratch& scratch) {
  attend_any<12>(p, task, scratch);
}
#endif

Attend best_for_this_cpu() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return attend_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return attend_avx2;
  }
#endif
  return attend_portable;
}

}  // namespace

void attention(const AttentionParams& p, Stream) {
  static const Attend attend_task = best_for_this_cpu();
  const auto tasks_of = [&](int br) {
    return static_cast<std::int64_t>(p.batch) * p.heads * ((p.q_len + br - 1) / br);
  };
  constexpr int kTasksPerThread = 4;
  const int br =
      tasks_of(kLargeBr) >= kTasksPerThread * omp_get_max_threads() ? kLargeBr : kSmallBr;
  const int row_tiles = (p.q_len + br - 1) / br;

#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < tasks_of(br); ++i) {
    thread_local Scratch scratch;
    scratch.reserve(br, round_up(p.head_dim, kLanes));
    const auto head = static_cast<int>(i / row_tiles);
    const int row0 = (row_tiles - 1 - static_cast<int>(i % row_tiles)) * br;  // longest first
    attend_task(p,
                {.batch = head / p.heads,
                 .head = head % p.heads,
                 .row0 = row0,
                 .rows = std::min(br, p.q_len - row0)},
                scratch);
  }
}

}  // namespace tilewright::cpu
