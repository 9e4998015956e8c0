#include "reference/append_kv.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "reference/rotation.hpp"

namespace tilewright::reference {
namespace {

constexpr double kE4m3Max = 448;
constexpr std::uint8_t kE4m3NaN = 0x7f;

double fp32(double value) { return static_cast<float>(value); }

// A row of k, v and q: where it lies in them, and where it goes.
struct Row {
  std::int64_t batch = 0;
  std::int64_t token = 0;
  std::int64_t sequence = 0;
  std::int64_t page = -1;  // -1: it is not stored
  std::int64_t in_page = -1;
  std::int64_t position = -1;
};

std::int64_t integer(const ConstTensorView& t, std::int64_t index) {
  return static_cast<std::int64_t>(load(t, index));
}

std::int64_t position_of(const AppendKvTensors& t, const Row& row, std::int64_t in_sequence) {
  if (!t.positions) {
    return in_sequence;
  }
  const std::int64_t batch_stride = t.positions->rank == 2 ? t.positions->stride[0] : 0;
  return integer(*t.positions, row.batch * batch_stride + row.token);
}

std::vector<Row> rows_by_slots(const AppendKvTensors& t) {
  std::vector<Row> rows;
  for (std::int64_t token = 0; token < t.k.shape[0]; ++token) {
    Row row{.token = token};
    const std::int64_t slot = integer(*t.slot_mapping, token);
    if (slot >= 0) {
      row.page = slot / t.k_cache.shape[1];
      row.in_page = slot % t.k_cache.shape[1];
    }
    row.position = position_of(t, row, -1);
    rows.push_back(row);
  }
  return rows;
}

std::vector<Row> rows_by_lengths(const AppendKvTensors& t) {
  std::vector<Row> rows;
  const std::int64_t page_size = t.k_cache.shape[1];
  for (std::int64_t b = 0; b < t.cache_seqlens->shape[0]; ++b) {
    const std::int64_t first = t.cu_seqlens_new ? integer(*t.cu_seqlens_new, b) : 0;
    const std::int64_t end = t.cu_seqlens_new ? integer(*t.cu_seqlens_new, b + 1) : t.k.shape[1];
    for (std::int64_t i = 0; i < end - first; ++i) {
      const std::int64_t in_sequence = integer(*t.cache_seqlens, b) + i;
      Row row{.batch = t.cu_seqlens_new ? 0 : b, .token = first + i, .sequence = b};
      row.position = position_of(t, row, in_sequence);
      if (t.block_table) {
        row.page = integer(*t.block_table, b * t.block_table->stride[0] + in_sequence / page_size);
        row.in_page = in_sequence % page_size;
      } else {
        row.page = t.cache_batch_idx ? integer(*t.cache_batch_idx, b) : b;
        row.in_page = in_sequence;
      }
      rows.push_back(row);
    }
  }
  return rows;
}

// The offset of a row's head in k, v, q or q_out.
std::int64_t row_offset(const ConstTensorView& t, const Row& row, std::int64_t head) {
  return (t.rank == 4 ? row.batch * t.stride[0] : 0) + row.token * t.stride[t.rank - 3] +
         head * t.stride[t.rank - 2];
}

std::int64_t cache_offset(const ConstTensorView& t, const Row& row, std::int64_t head) {
  return row.page * t.stride[0] + row.in_page * t.stride[1] + head * t.stride[2];
}

// Values of one head of a row in FP32, of which the first are rotated, if `is_rotated`.
std::vector<double> values_of(const AppendKvTensors& t, const AppendKvOptions& options,
                              const ConstTensorView& x, std::int64_t offset, std::int64_t position,
                              bool is_rotated) {
  std::vector<double> values = row_values(x, offset, x.shape[x.rank - 1]);
  if (is_rotated) {
    rotate(std::span(values).first(static_cast<std::size_t>(2 * t.rotary_cos->shape[1])),
           {*t.rotary_cos, *t.rotary_sin, options.interleaved}, position);
  }
  return values;
}

double computed_descale(const std::vector<double>& values) {
  double amax = 0;
  for (const double value : values) {
    amax = std::isfinite(value) ? std::max(amax, std::abs(value)) : amax;
  }
  return amax == 0 ? 1 : std::max(fp32(amax / kE4m3Max), static_cast<double>(FLT_MIN));
}

// k or v, its cache and its descales.
struct Appended {
  ConstTensorView x;
  TensorView cache;
  std::optional<ConstTensorView> given;
  std::optional<TensorView> computed;
  std::int64_t rotary_dims;
};

double descale_of(const Appended& a, const Row& row, std::int64_t head,
                  const std::vector<double>& values) {
  if (a.computed) {
    const double descale = computed_descale(values);
    store(*a.computed, cache_offset(*a.computed, row, head), descale);
    return descale;
  }
  return a.given->rank == 2
             ? load(*a.given, row.sequence * a.given->stride[0] + head * a.given->stride[1])
             : load(*a.given, 0);
}

void append(const AppendKvTensors& t, const AppendKvOptions& options, const Appended& a,
            const Row& row) {
  for (std::int64_t head = 0; head < a.cache.shape[2]; ++head) {
    const std::int64_t from = row_offset(a.x, row, head);
    const std::int64_t to = cache_offset(a.cache, row, head);
    const auto values = values_of(t, options, a.x, from, row.position, a.rotary_dims > 0);
    if (a.cache.dtype != DType::e4m3) {
      store_rotated(a.cache, to, values, 0, a.rotary_dims, a.x, from);
      continue;
    }
    const double descale = descale_of(a, row, head, values);
    for (std::size_t d = 0; d < values.size(); ++d) {
      const double quotient = fp32(values[d] / descale);
      store(a.cache, to + static_cast<std::int64_t>(d),
            std::isnan(quotient) ? kE4m3NaN : round_to_e4m3(quotient));
    }
  }
}

}  // namespace

void append_kv(const AppendKvTensors& t, const AppendKvOptions& options) {
  const std::int64_t rotary_dims = t.rotary_cos ? 2 * t.rotary_cos->shape[1] : 0;
  const Appended k{t.k, t.k_cache, t.k_descale, t.computed_k_descale, rotary_dims};
  const Appended v{t.v, t.v_cache, t.v_descale, t.computed_v_descale, 0};
  for (const Row& row : t.slot_mapping ? rows_by_slots(t) : rows_by_lengths(t)) {
    if (row.page >= 0) {
      append(t, options, k, row);
      append(t, options, v, row);
    }
    for (std::int64_t head = 0; t.q && head < t.q->shape[t.q->rank - 2]; ++head) {
      const std::int64_t from = row_offset(*t.q, row, head);
      const auto values = values_of(t, options, *t.q, from, row.position, true);
      store_rotated(*t.q_out, row_offset(*t.q_out, row, head), values, 0, rotary_dims, *t.q, from);
    }
  }
}

}  // namespace tilewright::reference
