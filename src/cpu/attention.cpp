// Attention on the CPU: FlashAttention-2's tiling in FP32, on all cores.
//
// A task is a tile of query rows of one head. It walks over that head's keys tile by tile with the
// online softmax, as K2 to K6 do:
//
//   pack Q (scaled by scale * log2 e)                         (Br, D)
//   for each key tile:
//     pack K transposed, pack V                               (D, Bc), (Bc, Dv)
//     S = Q K^T | cap | P = exp2(S - m), l, rescale O | O += P V
//   sink | O / l, LSE
//
// Source    FlashAttention-2, algorithm 1.
// Tiles     Br = 192 rows, or 48 if there would be too few tasks for the cores; Bc = 128. Key tiles
//           start at multiples of Bc in their sequence, so that a row's sums do not depend on Br.
// Scratch   4 (Br (D + Dv + Bc + 2) + (D + Dv) Bc) bytes for each thread, kept between calls. At
//           D = 128 that is 420 KB, whatever the lengths: a tile's data stays in the L2 cache.
// Packing   It turns any dtype and strides into dense FP32, with D padded by zeros to a multiple of
//           16.
// Registers A block of C: 12 rows x 16 columns with AVX-512, 6 x 16 with AVX2 and elsewhere.
// Limits    BF16 and FP16 are no faster than FP32, to which they are converted when packed. The
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/cpu_attention.hpp"
#include "cpu/element.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector.hpp"

namespace tilewright::cpu {
namespace {

constexpr int kBc = 128;
constexpr int kLargeBr = 192;
constexpr int kSmallBr = 48;
constexpr double kLog2e = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

int round_up(int value, int step) { return (value + step - 1) / step * step; }

// Where a sequence's queries and keys begin in their tensors, and how many there are.
struct Sequence {
  int batch;
  int first_query;
  int first_key;
  int q_len;
  int kv_len;
};

Sequence sequence_of(const AttentionParams& p, int batch) {
  Sequence s{
      .batch = batch, .first_query = 0, .first_key = 0, .q_len = p.q_len, .kv_len = p.kv_len};
  if (p.packed_q.cu_seqlens != nullptr) {
    s.first_query = p.packed_q.cu_seqlens[batch];
    s.q_len = p.packed_q.cu_seqlens[batch + 1] - s.first_query;
  }
  if (p.kv_lengths.cu_seqlens != nullptr) {
    s.first_key = p.kv_lengths.cu_seqlens[batch];
    s.kv_len = p.kv_lengths.cu_seqlens[batch + 1] - s.first_key;
  }
  if (p.kv_lengths.used != nullptr) {
    s.kv_len = p.kv_lengths.used[batch];
  }
  return s;
}

// One task: `rows` queries of a sequence from row0 on, of one head.
struct Task {
  Sequence sequence;
  int head;
  int row0;
  int rows;
};

// A thread's scratch memory.
struct Scratch {
  std::vector<float> q, kt, v, s, o, m, l;

  void reserve(int br, int padded_dim, int padded_value_dim) {
    const auto grow = [](std::vector<float>& buffer, int size) {
      if (buffer.size() < static_cast<std::size_t>(size)) {
        buffer.resize(static_cast<std::size_t>(size));
      }
    };
    grow(q, br * padded_dim);
    grow(o, br * padded_value_dim);
    grow(kt, padded_dim * kBc);
    grow(v, kBc * padded_value_dim);
    grow(s, br * kBc);
    grow(m, br);
    grow(l, br);
  }
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

std::int64_t offset_of(const OuterStrides& stride, int batch, int seq, int head) {
  return batch * stride.batch + seq * stride.seq + head * stride.head;
}

// The keys [first, end) that a row sees; none if end <= first.
struct Keys {
  int first;
  int end;
};

Keys visible_keys(const AttentionParams& p, const Sequence& s, int row) {
  const int here = row + s.kv_len - s.q_len;
  const int right = p.causal ? 0 : p.window.right;
  return {.first = std::max(here - p.window.left, 0), .end = std::min(here + right + 1, s.kv_len)};
}

// Converts rows to dense FP32 and scales them. Columns from head_dim on become zero.
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

// Converts keys to columns of target (dim, kBc). Columns from `rows` to the vector width become 0.
template <typename T>
TILEWRIGHT_INLINE void pack_transposed(const T* source, std::int64_t row_stride, int rows, int dim,
                                       float* target) {
  for (int j0 = 0; j0 < rows; j0 += kLanes) {  // 16 keys at a time: whole vectors of the target
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

// The reference of a row whose maximum so far is m. If the row has no score yet, it is not
// -infinity, which would give NaN.
TILEWRIGHT_INLINE float reference_of(float m) {
  return m == -std::numeric_limits<float>::infinity() ? 0.0f : m;
}

// A row's step of the online softmax: S becomes P in columns [first, end), and 0 in the others.
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
  const float reference = reference_of(m_new);
  Floats sum{};
  for (int j = 0; j < columns; j += kLanes) {
    Floats x;
    load(s + j, x);
    x -= reference;
    exp2_in_place(x);
    sum += x;
    store(s + j, x);
  }
  const float correction = std::exp2(m - reference);  // 0 if m was -infinity
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

// A row's statistics in natural units: the maximum of its scores and the sum of exp(score - m).
struct RowStatistics {
  float m;
  float l;
};

// Counts a row's sink as one more key whose value is 0. An infinite sink has all the weight; a NaN
// makes the row's results NaN.
TILEWRIGHT_INLINE RowStatistics add_sink(float sink, const RowStatistics& row, float* o,
                                         int padded_dim) {
  const float m_new = row.m > sink ? row.m : sink;
  const float reference = reference_of(m_new);
  const float correction = std::exp(row.m - reference);
  const float weight =
      sink == std::numeric_limits<float>::infinity() ? 1.0f : std::exp(sink - reference);
  for (int d = 0; d < padded_dim; ++d) {
    o[d] *= correction;
  }
  return {.m = m_new, .l = row.l * correction + weight};
}

// Writes row i of the task: O, normalised or not, and the statistics that are asked for.
template <typename T>
TILEWRIGHT_INLINE void write_row(const AttentionParams& p, const Task& task, int i,
                                 const RowStatistics& row, const float* o) {
  const auto [m, l] = row;
  const auto offset = [&](const OuterStrides& stride) {
    return offset_of(stride, task.sequence.batch, task.sequence.first_query + task.row0 + i,
                     task.head);
  };
  if (p.statistics.max != nullptr) {
    std::copy_n(o, p.value_dim, static_cast<float*>(p.o) + offset(p.o_stride));
    p.statistics.max[offset(p.statistics.max_stride)] = std::isnan(l) ? l : m;
    p.statistics.sum[offset(p.statistics.sum_stride)] = l;
  } else {
    const float inverse_l = l == 0.0f ? 0.0f : 1.0f / l;
    T* const out = static_cast<T*>(p.o) + offset(p.o_stride);
    for (int d = 0; d < p.value_dim; ++d) {
      from_float(o[d] * inverse_l, out[d]);
    }
  }
  if (p.lse != nullptr) {
    p.lse[offset(p.lse_stride)] = m + std::log(l);
  }
}

// A tile of keys, [key0, key0 + count), of which no row of the task sees the first `hidden`.
struct KeyTile {
  int key0;
  int count;
  int hidden;
};

// Adds a tile of keys to the task's O, m and l. Q has been packed, and scaled for base 2 or, with a
// soft cap, for the argument of tanh.
template <typename T, int kRows>
TILEWRIGHT_INLINE void add_tile(const AttentionParams& p, const Task& task, const KeyTile& tile,
                                Scratch& scratch) {
  const int padded_dim = round_up(p.head_dim, kLanes);
  const int padded_value_dim = round_up(p.value_dim, kLanes);
  const int columns = round_up(tile.count, kLanes);
  const int seen_count = tile.count - tile.hidden;
  const int kv_head = task.head / (p.heads / p.kv_heads);
  const int first_key = task.sequence.first_key + tile.key0;
  pack_transposed(
      static_cast<const T*>(p.k) + offset_of(p.k_stride, task.sequence.batch, first_key, kv_head),
      p.k_stride.seq, tile.count, p.head_dim, scratch.kt.data());
  pack_rows(static_cast<const T*>(p.v) +
                offset_of(p.v_stride, task.sequence.batch, first_key + tile.hidden, kv_head),
            p.v_stride.seq, seen_count, p.value_dim, padded_value_dim, 1.0f, scratch.v.data());
  multiply<kRows, false>(scratch.q.data(), padded_dim, scratch.kt.data(), kBc, scratch.s.data(),
                         kBc, task.rows, columns, p.head_dim);
  for (int i = 0; i < task.rows; ++i) {
    float* const s = scratch.s.data() + i * kBc;
    const Keys seen = visible_keys(p, task.sequence, task.row0 + i);
    const int first = std::clamp(seen.first - tile.key0, 0, tile.count);
    const int end = std::clamp(seen.end - tile.key0, 0, tile.count);
    if (p.softcap > 0) {
      for (int j = first; j < end; ++j) {
        s[j] = static_cast<float>(p.softcap * kLog2e) * std::tanh(s[j]);
      }
    }
    online_softmax_row(s, first, end, columns, scratch.m[i], scratch.l[i],
                       scratch.o.data() + i * padded_value_dim, padded_value_dim);
  }
  multiply<kRows, true>(scratch.s.data() + tile.hidden, kBc, scratch.v.data(), padded_value_dim,
                        scratch.o.data(), padded_value_dim, task.rows, padded_value_dim,
                        seen_count);
}

template <typename T, int kRows>
TILEWRIGHT_INLINE void attend(const AttentionParams& p, const Task& task, Scratch& scratch) {
  const Sequence& sequence = task.sequence;
  const int padded_value_dim = round_up(p.value_dim, kLanes);
  const auto score_scale =
      static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2e);
  pack_rows(static_cast<const T*>(p.q) +
                offset_of(p.q_stride, sequence.batch, sequence.first_query + task.row0, task.head),
            p.q_stride.seq, task.rows, p.head_dim, round_up(p.head_dim, kLanes), score_scale,
            scratch.q.data());
  std::fill_n(scratch.o.begin(), task.rows * padded_value_dim, 0.0f);
  std::fill_n(scratch.m.begin(), task.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.l.begin(), task.rows, 0.0f);

  const int first = visible_keys(p, sequence, task.row0).first;
  const int end = visible_keys(p, sequence, task.row0 + task.rows - 1).end;
  for (int key0 = first / kBc * kBc; key0 < end; key0 += kBc) {
    add_tile<T, kRows>(
        p, task,
        {.key0 = key0, .count = std::min(kBc, end - key0), .hidden = std::max(first - key0, 0)},
        scratch);
  }
  for (int i = 0; i < task.rows; ++i) {
    float* const o = scratch.o.data() + i * padded_value_dim;
    RowStatistics row{.m = static_cast<float>(kLn2 * scratch.m[i]), .l = scratch.l[i]};
    if (p.sinks.logits != nullptr) {
      row = add_sink(p.sinks.logits[task.head * p.sinks.stride], row, o, padded_value_dim);
    }
    write_row<T>(p, task, i, row, o);
  }
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
    default:  // refused by the registry
      return;
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

// Tiles of at most `br` rows, of all sequences and heads. A head's longest tiles come first.
std::vector<Task> tasks_of(const AttentionParams& p, int br) {
  std::vector<Task> tasks;
  for (int batch = 0; batch < p.batch; ++batch) {
    const Sequence sequence = sequence_of(p, batch);
    for (int head = 0; head < p.heads; ++head) {
      for (int tile = (sequence.q_len + br - 1) / br; tile-- > 0;) {
        tasks.push_back({.sequence = sequence,
                         .head = head,
                         .row0 = tile * br,
                         .rows = std::min(br, sequence.q_len - tile * br)});
      }
    }
  }
  return tasks;
}

}  // namespace

void attention(const AttentionParams& p, Stream) {
  static const Attend attend_task = best_for_this_cpu();
  constexpr std::size_t kTasksPerThread = 4;
  int br = kLargeBr;
  std::vector<Task> tasks = tasks_of(p, br);
  if (tasks.size() < kTasksPerThread * static_cast<std::size_t>(thread_count())) {
    br = kSmallBr;
    tasks = tasks_of(p, br);
  }
  const auto reserve = [&] {
    thread_scratch().reserve(br, round_up(p.head_dim, kLanes), round_up(p.value_dim, kLanes));
  };
  parallel_for(static_cast<std::int64_t>(tasks.size()), 1, reserve, [&](std::int64_t i) {
    attend_task(p, tasks[static_cast<std::size_t>(i)], thread_scratch());
  });
}

}  // namespace tilewright::cpu
