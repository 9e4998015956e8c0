#include "reference/dsv4_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/attention_row.hpp"
#include "reference/host_tensor.hpp"
#include "reference/kv_rows.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

using Tensors = Dsv4AttentionTensors;
using Options = Dsv4AttentionOptions;

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kRotated = kDsv4RotaryDims;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// `count` values of a tensor with neighbouring elements.
std::vector<double> loaded(const ConstTensorView& t, std::int64_t offset, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t d = 0; d < count; ++d) {
    values.push_back(load(t, offset + d));
  }
  return values;
}

// ---- Tokens

// The offset of a token in a tensor (B, Nq, ...) or (Tq, ...).
std::int64_t token_offset(const Tensors& t, const ConstTensorView& tensor, std::int64_t b,
                          std::int64_t i) {
  return t.cu_seqlens_q ? (request_of(t, b).first_row + i) * tensor.stride[0]
                        : b * tensor.stride[0] + i * tensor.stride[1];
}

std::int64_t int_at(const ConstTensorView& tensor, std::int64_t offset) {
  return static_cast<std::int64_t>(load(tensor, offset));
}

std::int64_t slot_of_position(const Dsv4Scope& scope, std::int64_t b, std::int64_t position) {
  const std::int64_t page_size = scope.rows.shape[1];
  const std::int64_t place = scope.ring > 0 ? position % scope.ring : position;
  const std::int64_t page =
      scope.block_table
          ? int_at(*scope.block_table, b * scope.block_table->stride[0] + place / page_size)
          : b;
  return page * page_size + place % page_size;
}

// The values of rows of a cache, one after the other.
std::vector<double> values_of_rows(const ConstTensorView& rows,
                                   const std::vector<std::int64_t>& slots) {
  const auto count = static_cast<std::int64_t>(slots.size());
  if (count == 0) {
    return {};
  }
  HostTensor values(DType::fp32, {count, kDim});
  dequantize_kv_rows({.rows = rows,
                      .out = values.view(),
                      .slot_mapping = contiguous(slots.data(), DType::int64, std::array{count})});
  return loaded(values.view(), 0, count * kDim);
}

// The values of all keys that a token sees, one row after the other.
std::vector<double> seen_keys(const Tensors& t, std::int64_t b, std::int64_t i) {
  std::vector<double> keys;
  const auto append = [&](const std::vector<double>& rows) {
    keys.insert(keys.end(), rows.begin(), rows.end());
  };
  for (const auto* const scope : {&t.window, &t.compressed}) {
    if (*scope) {
      append(values_of_rows((*scope)->rows, seen_slots(t, *scope, b, i)));
    }
  }
  for (std::int64_t j = 0; t.fresh_rows && j <= i; ++j) {
    append(loaded(*t.fresh_rows, token_offset(t, *t.fresh_rows, b, j), kDim));
  }
  return keys;
}

// ---- Rows of the result

// Rotates the last dims by the negative angle of the token's position.
void rotate_back(const Tensors& t, std::int64_t b, std::int64_t i, double* o) {
  const auto position =
      static_cast<const std::int64_t*>(t.positions->data)[token_offset(t, *t.positions, b, i)];
  for (std::int64_t pair = 0; pair < kRotated / 2; ++pair) {
    const double cos = load(*t.rotary_cos, position * t.rotary_cos->stride[0] + pair);
    const double sin = load(*t.rotary_sin, position * t.rotary_sin->stride[0] + pair);
    double* const two = o + kDim - kRotated + 2 * pair;
    const double x = two[0];
    const double y = two[1];
    two[0] = cos * x + sin * y;
    two[1] = cos * y - sin * x;
  }
}

// The rows of all heads of token i of request b.
void attend_token(const Tensors& t, const Options& options, Rounding rounding, std::int64_t b,
                  std::int64_t i, AttentionResult& result) {
  const Dsv4Request request = request_of(t, b);
  const std::int64_t heads = t.q.shape[t.q.rank - 2];
  const std::int64_t length = t.q.shape[t.q.rank - 3];
  const std::int64_t n = request.first_row + i;
  const std::vector<double> keys = seen_keys(t, b, i);
  std::vector<std::int64_t> all(keys.size() / kDim);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::vector<double> q =
        loaded(t.q, token_offset(t, t.q, b, i) + h * t.q.stride[t.q.rank - 2], kDim);
    Scoring scoring{.scale = options.scale ? *options.scale : 1.0 / std::sqrt(512.0),
                    .softcap = 0,
                    .sink = t.sinks ? load(*t.sinks, h * t.sinks->stride[0]) : kMinusInfinity,
                    .rounding = rounding};
    double* const o = result.o.data() + ((request.entry * length + n) * heads + h) * kDim;
    const auto sums_of_row = [&] {
      return attend(q.data(), keys.data(), kDim, keys.data(), kDim, all, scoring, o);
    };
    const auto row = static_cast<std::size_t>((request.entry * heads + h) * length + n);
    const auto with_sink = sums_of_row();
    result.row_max[row] = with_sink.max;
    result.row_sum[row] = with_sink.sum;
    result.lse[row] = with_sink.max + std::log(with_sink.sum);
    if (!options.lse_counts_sink) {
      const std::vector<double> kept(o, o + kDim);
      scoring.sink = kMinusInfinity;
      const auto of_keys = sums_of_row();
      result.lse[row] = of_keys.max + std::log(of_keys.sum);
      std::ranges::copy(kept, o);
    }
    if (t.row_max) {
      continue;
    }
    normalize(o, kDim, with_sink.sum);
    if (t.rotary_cos) {
      rotate_back(t, b, i, o);
    }
    round_output(o, kDim, rounding);
  }
}

}  // namespace

std::int64_t request_count(const Tensors& t) {
  return t.cu_seqlens_q ? t.cu_seqlens_q->shape[0] - 1 : t.q.shape[0];
}

Dsv4Request request_of(const Tensors& t, std::int64_t b) {
  if (!t.cu_seqlens_q) {
    return {.entry = b, .first_row = 0, .tokens = t.q.shape[1]};
  }
  const std::int64_t first = int_at(*t.cu_seqlens_q, b);
  return {.entry = 0, .first_row = first, .tokens = int_at(*t.cu_seqlens_q, b + 1) - first};
}

std::vector<std::int64_t> seen_slots(const Tensors& t, const std::optional<Dsv4Scope>& scope,
                                     std::int64_t b, std::int64_t i) {
  std::vector<std::int64_t> slots;
  if (!scope) {
    return slots;
  }
  if (scope->indices) {
    const ConstTensorView& indices = *scope->indices;
    const std::int64_t first = token_offset(t, indices, b, i);
    const std::int64_t count =
        scope->list_lengths ? int_at(*scope->list_lengths, b) : indices.shape[indices.rank - 1];
    for (std::int64_t j = 0; j < count; ++j) {
      if (int_at(indices, first + j) != -1) {
        slots.push_back(int_at(indices, first + j));
      }
    }
    return slots;
  }
  const auto bound = [&](const ConstTensorView& of) {
    return int_at(of, token_offset(t, of, b, i));
  };
  const std::int64_t end = bound(*scope->range_end);
  for (std::int64_t j = scope->range_begin ? bound(*scope->range_begin) : 0; j < end; ++j) {
    slots.push_back(slot_of_position(*scope, b, j));
  }
  return slots;
}

AttentionResult dsv4_attention(const Tensors& t, const Options& options, Rounding rounding) {
  const std::int64_t heads = t.q.shape[t.q.rank - 2];
  const auto rows = static_cast<std::size_t>((t.q.rank == 4 ? t.q.shape[0] : 1) *
                                             t.q.shape[t.q.rank - 3] * heads);
  AttentionResult result;
  result.o.resize(rows * kDim, kNaN);
  result.lse.resize(rows, kNaN);
  result.row_max.resize(rows, kNaN);
  result.row_sum.resize(rows, kNaN);
  std::vector<std::pair<std::int64_t, std::int64_t>> tokens;
  for (std::int64_t b = 0; b < request_count(t); ++b) {
    for (std::int64_t i = 0; i < request_of(t, b).tokens; ++i) {
      tokens.emplace_back(b, i);
    }
  }
  parallel_for(static_cast<std::int64_t>(tokens.size()), [&](std::int64_t task) {
    const auto [b, i] = tokens[static_cast<std::size_t>(task)];
    attend_token(t, options, rounding, b, i, result);
  });
  return result;
}

double output_scale(double amax) {
  return std::exp2(std::ceil(std::log2(std::max(amax, 1e-4) / 448)));
}

}  // namespace tilewright::reference
