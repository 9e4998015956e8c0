// Attention of a tile of queries on the CPU: FlashAttention-2's tiling in FP32, for every operation
// of attention.
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
// Limits    BF16 and FP16 are no faster than FP32, to which they are converted when packed.
//
// What differs between operations is where keys lie, and which of them a query sees. An operation
// says it by a type, called Keys below, which it makes of its params for each task:
//
//   using Params                  the operation's
//   using Output                  the type of an element of o that is normalised, as of element.hpp
//   static Sequence sequence_of(const Params&, int batch)
//   Keys(const Params&, const Sequence&, int head)
//   q_rows(row0)                  the queries from row0 on, as of k_rows
//   k_rows(key0, count), v_rows(key0, count)
//                                 the keys [key0, key0 + count): element d of the j-th as a float
//                                 is rows(j, d)
//   hide_scores(row, key0, s, first, end)
//                                 sets the scores of those of keys [key0 + first, key0 + end) to
//                                 -infinity that `row` does not see, though they lie in its range
//   hide_values(key0, count, v, padded_dim)
//                                 sets values of those keys to 0 that no query sees
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/strides.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/element.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright::cpu {

inline constexpr int kBc = 128;
inline constexpr int kLargeBr = 192;
inline constexpr int kSmallBr = 48;
inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

inline int round_up(int value, int step) { return (value + step - 1) / step * step; }

// Where a sequence's queries and keys begin in their tensors, and how many there are.
struct Sequence {
  int batch;
  int first_query;
  int first_key;
  int q_len;
  int kv_len;
  int unseen = 0;  // so many of its first keys no query sees
};

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

inline Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// The keys [first, end) that a row sees; none if end <= first.
struct KeyRange {
  int first;
  int end;
};

template <class Params>
KeyRange visible_keys(const Params& p, const Sequence& s, int row) {
  const int here = row + s.kv_len - s.q_len;
  const int right = p.causal ? 0 : p.window.right;
  return {.first = std::max(here - p.window.left, s.unseen),
          .end = std::min(here + right + 1, s.kv_len)};
}

// Rows that lie a stride apart.
template <typename T>
struct StridedRows {
  const T* first;
  std::int64_t stride;

  TILEWRIGHT_INLINE float operator()(int i, int d) const { return to_float(first[i * stride + d]); }
};

// Rows times a factor.
template <class Rows>
struct ScaledRows {
  const Rows& rows;
  float scale;

  TILEWRIGHT_INLINE float operator()(int i, int d) const { return scale * rows(i, d); }
};

// A head's queries from row0 on.
template <typename T, class Params>
TILEWRIGHT_INLINE StridedRows<T> query_rows(const Params& p, const Sequence& sequence, int head,
                                            int row0) {
  return {.first = static_cast<const T*>(p.q) +
                   p.q_stride.offset(sequence.batch, sequence.first_query + row0, head),
          .stride = p.q_stride.seq};
}

// Makes rows dense. Columns from head_dim on become zero.
template <class Rows>
TILEWRIGHT_INLINE void pack_rows(const Rows& source, int rows, int dim, int padded_dim,
                                 float* target) {
  for (int i = 0; i < rows; ++i, target += padded_dim) {
    for (int d = 0; d < dim; ++d) {
      target[d] = source(i, d);
    }
    std::fill(target + dim, target + padded_dim, 0.0f);
  }
}

// Makes keys columns of target (dim, kBc). Columns from `rows` to the vector width become 0.
template <class Rows>
TILEWRIGHT_INLINE void pack_transposed(const Rows& source, int rows, int dim, float* target) {
  for (int j0 = 0; j0 < rows; j0 += kLanes) {  // 16 keys at a time: whole vectors of the target
    const int count = std::min(kLanes, rows - j0);
    for (int d = 0; d < dim; ++d) {
      float* const column = target + d * kBc + j0;
      for (int j = 0; j < count; ++j) {
        column[j] = source(j0 + j, d);
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
struct RowSums {
  float m;
  float l;
};

// Counts a row's sink as one more key whose value is 0. An infinite sink has all the weight; a NaN
// makes the row's results NaN.
TILEWRIGHT_INLINE RowSums add_sink(float sink, const RowSums& row, float* o, int padded_dim) {
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
template <typename T, class Params>
TILEWRIGHT_INLINE void write_row(const Params& p, const Task& task, int i, const RowSums& row,
                                 const float* o) {
  const auto [m, l] = row;
  const auto offset = [&](const OuterStrides& stride) {
    return stride.offset(task.sequence.batch, task.sequence.first_query + task.row0 + i, task.head);
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
template <int kRows, class Keys>
TILEWRIGHT_INLINE void add_tile(const typename Keys::Params& p, const Keys& keys, const Task& task,
                                const KeyTile& tile, Scratch& scratch) {
  const int padded_dim = round_up(p.head_dim, kLanes);
  const int padded_value_dim = round_up(p.value_dim, kLanes);
  const int columns = round_up(tile.count, kLanes);
  const int seen_count = tile.count - tile.hidden;
  pack_transposed(keys.k_rows(tile.key0, tile.count), tile.count, p.head_dim, scratch.kt.data());
  pack_rows(keys.v_rows(tile.key0 + tile.hidden, seen_count), seen_count, p.value_dim,
            padded_value_dim, scratch.v.data());
  keys.hide_values(tile.key0 + tile.hidden, seen_count, scratch.v.data(), padded_value_dim);
  multiply<kRows, false>(scratch.q.data(), padded_dim, scratch.kt.data(), kBc, scratch.s.data(),
                         kBc, task.rows, columns, p.head_dim);
  for (int i = 0; i < task.rows; ++i) {
    float* const s = scratch.s.data() + i * kBc;
    const KeyRange seen = visible_keys(p, task.sequence, task.row0 + i);
    const int first = std::clamp(seen.first - tile.key0, 0, tile.count);
    const int end = std::clamp(seen.end - tile.key0, 0, tile.count);
    if (p.softcap > 0) {
      for (int j = first; j < end; ++j) {
        s[j] = static_cast<float>(p.softcap * kLog2e) * std::tanh(s[j]);
      }
    }
    keys.hide_scores(task.row0 + i, tile.key0, s, first, end);
    online_softmax_row(s, first, end, columns, scratch.m[i], scratch.l[i],
                       scratch.o.data() + i * padded_value_dim, padded_value_dim);
  }
  multiply<kRows, true>(scratch.s.data() + tile.hidden, kBc, scratch.v.data(), padded_value_dim,
                        scratch.o.data(), padded_value_dim, task.rows, padded_value_dim,
                        seen_count);
}

template <int kRows, class Keys>
TILEWRIGHT_INLINE void attend(const typename Keys::Params& p, const Task& task, Scratch& scratch) {
  using T = typename Keys::Output;
  const Sequence& sequence = task.sequence;
  const Keys keys(p, sequence, task.head);
  const int padded_value_dim = round_up(p.value_dim, kLanes);
  const auto score_scale =
      static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2e);
  const auto q = keys.q_rows(task.row0);
  pack_rows(ScaledRows<decltype(q)>{.rows = q, .scale = score_scale}, task.rows, p.head_dim,
            round_up(p.head_dim, kLanes), scratch.q.data());
  std::fill_n(scratch.o.begin(), task.rows * padded_value_dim, 0.0f);
  std::fill_n(scratch.m.begin(), task.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.l.begin(), task.rows, 0.0f);

  const int first = visible_keys(p, sequence, task.row0).first;
  const int end = visible_keys(p, sequence, task.row0 + task.rows - 1).end;
  for (int key0 = first / kBc * kBc; key0 < end; key0 += kBc) {
    add_tile<kRows>(
        p, keys, task,
        {.key0 = key0, .count = std::min(kBc, end - key0), .hidden = std::max(first - key0, 0)},
        scratch);
  }
  for (int i = 0; i < task.rows; ++i) {
    float* const o = scratch.o.data() + i * padded_value_dim;
    RowSums row{.m = static_cast<float>(kLn2 * scratch.m[i]), .l = scratch.l[i]};
    if (p.sinks.logits != nullptr) {
      row = add_sink(p.sinks.logits[task.head * p.sinks.stride], row, o, padded_value_dim);
    }
    write_row<T>(p, task, i, row, o);
  }
}

template <class Keys>
struct AttendTask {
  template <int kRows>
  TILEWRIGHT_INLINE static void run(const typename Keys::Params& p, const Task& task,
                                    Scratch& scratch) {
    attend<kRows, Keys>(p, task, scratch);
  }
};

// Tiles of at most `br` rows, of all sequences and heads. A head's longest tiles come first.
template <class Keys>
std::vector<Task> tasks_of(const typename Keys::Params& p, int br) {
  std::vector<Task> tasks;
  for (int batch = 0; batch < p.batch; ++batch) {
    const Sequence sequence = Keys::sequence_of(p, batch);
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

// Computes a call on all cores. Before it reads keys, but when all memory has been allocated, it
// calls first(p), if that is not null.
template <class Keys>
void attend_all(const typename Keys::Params& p, void (*first)(const typename Keys::Params&)) {
  using Params = typename Keys::Params;
  static const auto attend_task =
      best_for_this_cpu<AttendTask<Keys>, const Params&, const Task&, Scratch&>();
  constexpr std::size_t kTasksPerThread = 4;
  int br = kLargeBr;
  std::vector<Task> tasks = tasks_of<Keys>(p, br);
  if (tasks.size() < kTasksPerThread * static_cast<std::size_t>(thread_count())) {
    br = kSmallBr;
    tasks = tasks_of<Keys>(p, br);
  }
  const auto reserve = [&] {
    thread_scratch().reserve(br, round_up(p.head_dim, kLanes), round_up(p.value_dim, kLanes));
  };
  if (first != nullptr) {
    parallel_for(0, 1, reserve, [](std::int64_t) {});
    first(p);
  }
  parallel_for(static_cast<std::int64_t>(tasks.size()), 1, reserve, [&](std::int64_t i) {
    attend_task(p, tasks[static_cast<std::size_t>(i)], thread_scratch());
  });
}

}  // namespace tilewright::cpu
