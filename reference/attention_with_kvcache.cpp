#include "reference/attention_with_kvcache.hpp"

#include <cmath>
#include <limits>

#include "reference/attention_row.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

using Tensors = AttentionWithKvCacheTensors;
using Options = AttentionWithKvCacheOptions;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::int64_t int_at(const ConstTensorView& vector, std::int64_t i) {
  return static_cast<std::int64_t>(load(vector, i));
}

// The offset of a row of ([B,] N, H, D).
std::int64_t row_offset(const ConstTensorView& t, std::int64_t entry, std::int64_t row,
                        std::int64_t head) {
  return (t.rank == 4 ? entry * t.stride[0] : 0) + row * t.stride[t.rank - 3] +
         head * t.stride[t.rank - 2];
}

// A sequence's keys or values of a head in float64, dense.
std::vector<double> gathered(const Tensors& t, const CachedSequence& sequence, std::int64_t b,
                             std::int64_t head, const ConstTensorView& cache,
                             const std::optional<ConstTensorView>& added,
                             const std::optional<ConstTensorView>& descale,
                             const std::vector<KeyPlace>& slots) {
  const auto descale_of = [&](std::size_t j) {
    const KeyPlace& slot = slots[j];
    if (!descale) {
      return 1.0;
    }
    const auto& s = descale->stride;
    switch (descale->rank) {
      case 1:
        return load(*descale, 0);
      case 2:
        return load(*descale, holder_of(t, b, static_cast<std::int64_t>(j)) * s[0] + head * s[1]);
      default:
        return load(*descale, slot.entry * s[0] + slot.row * s[1] + head * s[2]);
    }
  };
  std::vector<double> rows;
  for (std::size_t j = 0; j < slots.size(); ++j) {
    const KeyPlace& place = sequence.keys[j];
    const ConstTensorView& from = place.is_new ? *added : cache;
    const std::int64_t offset = row_offset(from, place.entry, place.row, head);
    for (std::int64_t d = 0; d < from.shape[from.rank - 1]; ++d) {
      const double value = load(from, offset + d);
      rows.push_back(from.dtype == DType::e4m3
                         ? descale_of(j) * scale_value(DType::e4m3, static_cast<int>(value))
                         : value);
    }
  }
  return rows;
}

// Row `row` of q's entry `sequence.batch`, of sequence b, in float64.
std::vector<double> query_row(const Tensors& t, const CachedSequence& sequence, std::int64_t b,
                              std::int64_t row, std::int64_t head) {
  const std::int64_t kv_head = head / (t.q.shape[t.q.rank - 2] / t.k_cache.shape[2]);
  const double descale =
      !t.q_descale ? 1.0
      : t.q_descale->rank == 1
          ? load(*t.q_descale, 0)
          : load(*t.q_descale, b * t.q_descale->stride[0] + kv_head * t.q_descale->stride[1]);
  std::vector<double> values;
  for (std::int64_t d = 0; d < t.q.shape[t.q.rank - 1]; ++d) {
    const double value = load(t.q, row_offset(t.q, sequence.batch, row, head) + d);
    values.push_back(t.q.dtype == DType::e4m3
                         ? descale * scale_value(DType::e4m3, static_cast<int>(value))
                         : value);
  }
  return values;
}

// A key/value head of a sequence.
struct HeadKeys {
  std::vector<double> k;
  std::vector<double> v;
};

HeadKeys head_keys(const Tensors& t, const CachedSequence& sequence, std::int64_t b,
                   std::int64_t kv_head) {
  std::vector<KeyPlace> slots;
  for (std::size_t j = 0; j < sequence.keys.size(); ++j) {
    slots.push_back(slot_of(t, b, static_cast<std::int64_t>(j)));
  }
  return {.k = gathered(t, sequence, b, kv_head, t.k_cache, t.k, t.k_descale, slots),
          .v = gathered(t, sequence, b, kv_head, t.v_cache, t.v, t.v_descale, slots)};
}

Scoring scoring_of(const Tensors& t, const Options& options, Rounding rounding, std::int64_t h) {
  const double dim = static_cast<double>(t.k_cache.shape[3]);
  return {.scale = options.scale ? *options.scale : 1.0 / std::sqrt(dim),
          .softcap = options.softcap,
          .sink = t.sinks ? load(*t.sinks, h * t.sinks->stride[0]) : kMinusInfinity,
          .rounding = rounding};
}

// The rows of the query heads [first, end) of a sequence, which share a key/value head.
void attend_group(const Tensors& t, const Options& options, Rounding rounding, std::int64_t b,
                  std::int64_t first, std::int64_t end, AttentionResult& result) {
  const CachedSequence sequence = sequence_of(t, b);
  const HeadKeys keys = head_keys(t, sequence, b, first / (end - first));
  const std::int64_t heads = t.q.shape[t.q.rank - 2];
  const std::int64_t length = t.q.shape[t.q.rank - 3];
  const std::int64_t dim = t.k_cache.shape[3];
  const std::int64_t value_dim = t.v_cache.shape[3];
  for (std::int64_t i = 0; i < sequence.query_count; ++i) {
    const std::int64_t n = sequence.first_query + i;
    const std::vector<std::int64_t> seen = seen_keys(t, options, sequence, b, i);
    for (std::int64_t h = first; h < end; ++h) {
      const std::vector<double> q = query_row(t, sequence, b, n, h);
      double* const o = result.o.data() + ((sequence.batch * length + n) * heads + h) * value_dim;
      const RowSums sums = attend(q.data(), keys.k.data(), dim, keys.v.data(), value_dim, seen,
                                  scoring_of(t, options, rounding, h), o);
      if (!t.row_max) {
        normalize(o, value_dim, sums.sum);
        round_output(o, value_dim, rounding);
      }
      const auto row = static_cast<std::size_t>((sequence.batch * heads + h) * length + n);
      result.row_max[row] = sums.max;
      result.row_sum[row] = sums.sum;
      result.lse[row] = sums.max + std::log(sums.sum);
    }
  }
}

}  // namespace

std::int64_t sequence_count(const Tensors& t) { return t.cache_seqlens.shape[0]; }

std::int64_t holder_of(const Tensors& t, std::int64_t b, std::int64_t position) {
  if (!t.prefix_groups) {
    return b;
  }
  std::int64_t group = 0;
  while (int_at(*t.prefix_groups, group + 1) <= b) {
    ++group;
  }
  return position < int_at(*t.prefix_seqlens, group) ? int_at(*t.prefix_groups, group) : b;
}

KeyPlace slot_of(const Tensors& t, std::int64_t b, std::int64_t position) {
  const std::int64_t holder = holder_of(t, b, position);
  if (t.block_table) {
    const std::int64_t page_size = t.k_cache.shape[1];
    return {
        .is_new = false,
        .entry = int_at(*t.block_table, holder * t.block_table->stride[0] + position / page_size),
        .row = position % page_size};
  }
  return {.is_new = false,
          .entry = t.cache_batch_idx ? int_at(*t.cache_batch_idx, holder) : holder,
          .row = position};
}

CachedSequence sequence_of(const Tensors& t, std::int64_t b) {
  CachedSequence s{.batch = b, .first_query = 0, .query_count = t.q.shape[1], .keys = {}};
  std::int64_t first_new = 0;
  std::int64_t new_count = t.k ? t.k->shape[1] : 0;
  if (t.cu_seqlens_q) {
    s.batch = 0;
    s.first_query = int_at(*t.cu_seqlens_q, b);
    s.query_count = int_at(*t.cu_seqlens_q, b + 1) - s.first_query;
    first_new = s.first_query;
    new_count = t.k ? s.query_count : 0;
  }
  for (std::int64_t j = 0; j < int_at(t.cache_seqlens, b); ++j) {
    s.keys.push_back(slot_of(t, b, j));
  }
  for (std::int64_t j = 0; j < new_count; ++j) {
    s.keys.push_back({.is_new = true, .entry = s.batch, .row = first_new + j});
  }
  return s;
}

std::vector<std::int64_t> seen_keys(const Tensors& t, const Options& options,
                                    const CachedSequence& sequence, std::int64_t b,
                                    std::int64_t i) {
  const auto count = static_cast<std::int64_t>(sequence.keys.size());
  const std::int64_t before_new = count - sequence.query_count;
  const std::int64_t here = before_new + i;
  const auto sees = [&](std::int64_t j) {
    if (t.leftpad_k && j < int_at(*t.leftpad_k, b)) {
      return false;
    }
    if (t.tree_mask) {
      const auto& stride = t.tree_mask->stride;
      const std::int64_t offset = t.tree_mask->rank == 2 ? b * stride[0] + i * stride[1]
                                                         : (sequence.first_query + i) * stride[0];
      const auto bits = static_cast<const std::uint64_t*>(t.tree_mask->data)[offset];
      return j < before_new || (bits >> (j - before_new) & 1) != 0;
    }
    return !(options.causal && j > here) &&
           !(options.window.left && here - j > *options.window.left) &&
           !(options.window.right && j - here > *options.window.right);
  };
  std::vector<std::int64_t> seen;
  for (std::int64_t j = 0; j < count; ++j) {
    if (sees(j)) {
      seen.push_back(j);
    }
  }
  return seen;
}

AttentionResult attention_with_kvcache(const Tensors& t, const Options& options,
                                       Rounding rounding) {
  const std::int64_t heads = t.q.shape[t.q.rank - 2];
  const auto rows = static_cast<std::size_t>((t.q.rank == 4 ? t.q.shape[0] : 1) *
                                             t.q.shape[t.q.rank - 3] * heads);
  AttentionResult result;
  result.o.resize(rows * static_cast<std::size_t>(t.v_cache.shape[3]), kNaN);
  result.lse.resize(rows, kNaN);
  result.row_max.resize(rows, kNaN);
  result.row_sum.resize(rows, kNaN);
  const std::int64_t kv_heads = t.k_cache.shape[2];
  const std::int64_t group = heads / kv_heads;
  parallel_for(sequence_count(t) * kv_heads, [&](std::int64_t task) {
    const std::int64_t first = task % kv_heads * group;
    attend_group(t, options, rounding, task / kv_heads, first, first + group, result);
  });
  return result;
}

void append_new_rows(const Tensors& t) {
  for (std::int64_t b = 0; t.k && b < sequence_count(t); ++b) {
    const CachedSequence sequence = sequence_of(t, b);
    for (std::size_t j = 0; j < sequence.keys.size(); ++j) {
      const KeyPlace& place = sequence.keys[j];
      const KeyPlace slot = slot_of(t, b, static_cast<std::int64_t>(j));
      const auto copy = [&](const ConstTensorView& from, const TensorView& to) {
        for (std::int64_t h = 0; h < to.shape[2]; ++h) {
          for (std::int64_t d = 0; d < to.shape[3]; ++d) {
            store(to, row_offset(to, slot.entry, slot.row, h) + d,
                  load(from, row_offset(from, place.entry, place.row, h) + d));
          }
        }
      };
      if (place.is_new) {
        copy(*t.k, t.k_cache);
        copy(*t.v, t.v_cache);
      }
    }
  }
}

}  // namespace tilewright::reference
