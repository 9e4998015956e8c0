// Merging attention results on the CPU: rows are shared over all cores. A row's sums are taken in
// the order of its parts, a few columns at a time, so that they need no memory.
#include <algorithm>

#include "common/merged_row.hpp"
#include "cpu/cpu_merge_states.hpp"
#include "cpu/element.hpp"
#include "cpu/parallel.hpp"

namespace tilewright::cpu {
namespace {

// A row of the result.
struct Row {
  int token;
  int head;
};

float part_max(const MergeStatesParams& p, int part, const Row& row) {
  return p.m[p.m_stride.offset(part, row.token, row.head)];
}

MergedRow merged_row(const MergeStatesParams& p, const Row& row) {
  MergedRow merged;
  for (int part = 0; part < p.parts; ++part) {
    merged.m = raised(merged.m, part_max(p, part, row));
  }
  const float sink = p.sinks.logits != nullptr ? p.sinks.logits[row.head * p.sinks.stride]
                                               : -std::numeric_limits<float>::infinity();
  merged.m = raised(merged.m, sink);
  for (int part = 0; part < p.parts; ++part) {
    const float m = part_max(p, part, row);
    if (!is_empty_part(m)) {
      const float l = p.l != nullptr ? p.l[p.l_stride.offset(part, row.token, row.head)] : 1.0f;
      merged.l += part_weight(m, merged.m) * l;
    }
  }
  if (!is_empty_part(sink)) {
    merged.l += part_weight(sink, merged.m);
  }
  return merged;
}

template <typename In, typename Out>
void write_output(const MergeStatesParams& p, const Row& row, const MergedRow& merged) {
  constexpr int kColumns = 64;
  const float factor = output_factor(merged, p.statistics.max == nullptr);
  Out* const out = static_cast<Out*>(p.out) + p.out_stride.offset(0, row.token, row.head);
  for (int first = 0; first < p.head_dim; first += kColumns) {
    const int columns = std::min(kColumns, p.head_dim - first);
    float sums[kColumns] = {};
    for (int part = 0; part < p.parts; ++part) {
      const float m = part_max(p, part, row);
      if (is_empty_part(m)) {
        continue;
      }
      const float weight = part_weight(m, merged.m);
      const In* const o =
          static_cast<const In*>(p.o) + p.o_stride.offset(part, row.token, row.head) + first;
      for (int i = 0; i < columns; ++i) {
        sums[i] += weight * to_float(o[i]);
      }
    }
    for (int i = 0; i < columns; ++i) {
      from_float(sums[i] * factor, out[first + i]);
    }
  }
}

void write_statistics(const MergeStatesParams& p, const Row& row, const MergedRow& merged) {
  if (p.lse_out != nullptr) {
    p.lse_out[p.lse_stride.offset(0, row.token, row.head)] = lse_of(merged);
  }
  if (p.statistics.max != nullptr) {
    p.statistics.max[p.statistics.max_stride.offset(0, row.token, row.head)] = row_max_of(merged);
    p.statistics.sum[p.statistics.sum_stride.offset(0, row.token, row.head)] = merged.l;
  }
}

}  // namespace

void merge_states(const MergeStatesParams& p, Stream) {
  with_element(p.dtype, [&]<typename In>(In*) {
    with_element(p.out_dtype, [&]<typename Out>(Out*) {
      parallel_for_rows(std::int64_t{p.tokens} * p.heads, [&](std::int64_t i) {
        const Row row{.token = static_cast<int>(i / p.heads),
                      .head = static_cast<int>(i % p.heads)};
        const MergedRow merged = merged_row(p, row);
        write_output<In, Out>(p, row, merged);
        write_statistics(p, row, merged);
      });
    });
  });
}

}  // namespace tilewright::cpu
