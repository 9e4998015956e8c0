// DeepSeek-V4's attention on the CPU: a tile of a token's heads against its keys, which all heads
// share, by the parts of attention_tile.hpp.
//
//   pack Q (scaled by scale * log2 e)                         (Br, 512)
//   for each tile of the token's keys, in their order:
//     decode the keys, which are the values, and transpose    (Bc, 512), (512, Bc)
//     S = Q K^T | P = exp2(S - m), l, rescale O | O += P K
//   LSE | sink | O / l | inverse RoPE | round, or quantise
//
// Tiles     Br = 128 heads, or 24 if there would be too few tasks for the cores; Bc = 128 keys.
//           Tiles of keys begin anew for each token, so that a row's sums depend on its request
//           alone.
// Scratch   1.2 MB for each thread at Br = 128, kept between calls.
#include <array>
#include <cmath>
#include <vector>

#include "common/block_scale.hpp"
#include "cpu/attention_tile.hpp"
#include "cpu/cpu_dsv4_attention.hpp"
#include "cpu/dsv4_keys.hpp"

namespace tilewright::cpu {
namespace {

using Params = Dsv4AttentionParams;

constexpr int kDim = kDsv4HeadDim;
constexpr int kAllHeads = 128;  // a task's, at most
constexpr int kFewHeads = 24;
constexpr int kOutputGroup = 128;  // values of o that share a scale

// One task: heads of a token.
struct HeadTask {
  NewToken token;
  int head0;
  int heads;
};

// Rotates the last dims of a row back: each pair by the conjugate of its rotation.
TILEWRIGHT_INLINE void rotate_back(const InverseRope& rope, const NewToken& token, float* o) {
  const std::int64_t position = rope.positions[token.at(rope.positions_stride)];
  const float* const cos = rope.cos + position * rope.cos_stride;
  const float* const sin = rope.sin + position * rope.sin_stride;
  float* const rotated = o + kDim - kDsv4RotaryDims;
  for (int i = 0; i < kDsv4RotaryDims / 2; ++i) {
    const float x = rotated[2 * i];
    const float y = rotated[2 * i + 1];
    rotated[2 * i] = x * cos[i] + y * sin[i];
    rotated[2 * i + 1] = y * cos[i] - x * sin[i];
  }
}

// Writes a row as E4M3, with a scale for each group.
TILEWRIGHT_INLINE void quantize_row(const float* o, std::uint8_t* out, float* scales,
                                    std::int64_t scale_stride) {
  for (int group = 0; group < kDim / kOutputGroup; ++group) {
    const float* const values = o + group * kOutputGroup;
    float amax = 0.0f;
    for (int d = 0; d < kOutputGroup; ++d) {
      const float magnitude = std::abs(values[d]);
      amax = magnitude > amax || magnitude != magnitude ? magnitude : amax;
    }
    const std::uint32_t scale = e8m0_scale_of(amax);
    const float inverse = inverse_of_e8m0_scale(scale);
    for (int d = 0; d < kOutputGroup; ++d) {
      out[group * kOutputGroup + d] = to_e4m3_as_gpu(values[d] * inverse);
    }
    scales[group * scale_stride] = e8m0_to_float(scale);
  }
}

// Writes the row of a task's i-th head: O, and the statistics that are asked for.
template <typename T>
TILEWRIGHT_INLINE void write_row(const Params& p, const HeadTask& task, int i, RowSums row,
                                 float* o) {
  const int head = task.head0 + i;
  const auto offset = [&](const OuterStrides& stride) {
    return stride.offset(task.token.batch, task.token.row, head);
  };
  const float lse_of_keys = row.m + std::log(row.l);
  if (p.sinks.logits != nullptr) {
    row = add_sink(p.sinks.logits[head * p.sinks.stride], row, o, kDim);
  }
  const auto [m, l] = row;
  if (p.lse != nullptr) {
    p.lse[offset(p.lse_stride)] = p.lse_counts_sink ? m + std::log(l) : lse_of_keys;
  }
  if (p.statistics.max != nullptr) {
    std::copy_n(o, kDim, static_cast<float*>(p.o) + offset(p.o_stride));
    p.statistics.max[offset(p.statistics.max_stride)] = std::isnan(l) ? l : m;
    p.statistics.sum[offset(p.statistics.sum_stride)] = l;
    return;
  }
  const float inverse_l = l == 0.0f ? 0.0f : 1.0f / l;
  for (int d = 0; d < kDim; ++d) {
    o[d] *= inverse_l;
  }
  if (p.rope.cos != nullptr) {
    rotate_back(p.rope, task.token, o);
  }
  if (p.o_scale != nullptr) {
    return quantize_row(o, static_cast<std::uint8_t*>(p.o) + offset(p.o_stride),
                        p.o_scale + offset(p.o_scale_stride), p.o_scale_group_stride);
  }
  T* const out = static_cast<T*>(p.o) + offset(p.o_stride);
  for (int d = 0; d < kDim; ++d) {
    from_float(o[d], out[d]);
  }
}

// Adds a tile of keys to the task's O, m and l.
template <int kRows, typename T>
TILEWRIGHT_INLINE void add_keys(std::span<const KeyRow> keys, int heads, Scratch& scratch) {
  const auto count = static_cast<int>(keys.size());
  const int columns = round_up(count, kLanes);
  for (int j = 0; j < count; ++j) {
    decode_row<T>(keys[static_cast<std::size_t>(j)], scratch.v.data() + j * kDim);
  }
  pack_transposed(StridedRows<float>{.first = scratch.v.data(), .stride = kDim}, count, kDim,
                  scratch.kt.data());
  multiply<kRows, false>(scratch.q.data(), kDim, scratch.kt.data(), kBc, scratch.s.data(), kBc,
                         heads, columns, kDim);
  for (int i = 0; i < heads; ++i) {
    online_softmax_row(scratch.s.data() + i * kBc, 0, count, columns, scratch.m[i], scratch.l[i],
                       scratch.o.data() + i * kDim, kDim);
  }
  multiply<kRows, true>(scratch.s.data(), kBc, scratch.v.data(), kDim, scratch.o.data(), kDim,
                        heads, kDim, count);
}

template <typename T>
struct AttendHeads {
  template <int kRows>
  TILEWRIGHT_INLINE static void run(const Params& p, const HeadTask& task, Scratch& scratch) {
    const StridedRows<T> q{.first = static_cast<const T*>(p.q) +
                                    p.q_stride.offset(task.token.batch, task.token.row, task.head0),
                           .stride = p.q_stride.head};
    const auto scale = static_cast<float>(p.scale * kLog2e);
    pack_rows(ScaledRows<StridedRows<T>>{.rows = q, .scale = scale}, task.heads, kDim, kDim,
              scratch.q.data());
    std::fill_n(scratch.o.begin(), task.heads * kDim, 0.0f);
    std::fill_n(scratch.m.begin(), task.heads, -std::numeric_limits<float>::infinity());
    std::fill_n(scratch.l.begin(), task.heads, 0.0f);

    KeyCursor cursor(p, task.token);
    std::array<KeyRow, kBc> keys;
    while (const int count = cursor.take(keys)) {
      add_keys<kRows, T>(std::span(keys).first(static_cast<std::size_t>(count)), task.heads,
                         scratch);
    }
    for (int i = 0; i < task.heads; ++i) {
      write_row<T>(p, task, i, {.m = static_cast<float>(kLn2 * scratch.m[i]), .l = scratch.l[i]},
                   scratch.o.data() + i * kDim);
    }
  }
};

// All tokens' heads, at most `most_heads` of them in a task.
std::vector<HeadTask> tasks_of(const Params& p, int most_heads) {
  std::vector<HeadTask> tasks;
  for (int batch = 0; batch < p.batch; ++batch) {
    const int* const ends = p.packed_q.cu_seqlens;
    const int first = ends != nullptr ? ends[batch] : 0;
    const int count = ends != nullptr ? ends[batch + 1] - first : p.q_len;
    for (int i = 0; i < count; ++i) {
      const NewToken token{.batch = batch, .index = i, .row = first + i};
      for (int head0 = 0; head0 < p.heads; head0 += most_heads) {
        tasks.push_back(
            {.token = token, .head0 = head0, .heads = std::min(most_heads, p.heads - head0)});
      }
    }
  }
  return tasks;
}

template <typename T>
void attend_all_heads(const Params& p) {
  static const auto attend_task =
      best_for_this_cpu<AttendHeads<T>, const Params&, const HeadTask&, Scratch&>();
  constexpr std::size_t kTasksPerThread = 2;
  int most_heads = kAllHeads;
  std::vector<HeadTask> tasks = tasks_of(p, most_heads);
  if (tasks.size() < kTasksPerThread * static_cast<std::size_t>(thread_count())) {
    most_heads = kFewHeads;
    tasks = tasks_of(p, most_heads);
  }
  parallel_for(
      static_cast<std::int64_t>(tasks.size()), 1,
      [&] { thread_scratch().reserve(std::min(most_heads, p.heads), kDim, kDim); },
      [&](std::int64_t i) {
        attend_task(p, tasks[static_cast<std::size_t>(i)], thread_scratch());
      });
}

}  // namespace

void dsv4_attention(const Params& p, Stream) {
  if (p.dtype == DType::fp32) {
    attend_all_heads<float>(p);
  } else {
    attend_all_heads<Bf16>(p);
  }
}

}  // namespace tilewright::cpu
