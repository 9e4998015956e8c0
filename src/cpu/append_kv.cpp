// Writing into a KV cache on the CPU: rows are shared over all cores, in the arithmetic that the
// GPU has, too.
//
// It is compiled without fusing products and sums (src/CMakeLists.txt): a rotation rounds both of
// its products.
#include <algorithm>

#include "common/block_scale.hpp"
#include "cpu/cpu_append_kv.hpp"
#include "cpu/element.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rotated_row.hpp"

namespace tilewright::cpu {
namespace {

template <typename T>
void store_row(const RotatedRow<T>& row, int dims, T* out) {
  for (int d = 0; d < dims; ++d) {
    if (row.is_rotated(d)) {
      from_float_as_gpu(row.value(d), out[d]);
    } else {
      out[d] = row.source(d);
    }
  }
}

template <typename T>
float computed_descale(const RotatedRow<T>& row, int dims) {
  float amax = 0.0f;
  for (int d = 0; d < dims; ++d) {
    amax = larger_finite(amax, row.value(d));
  }
  return e4m3_descale(amax);
}

template <typename T>
void quantize_row(const RotatedRow<T>& row, int dims, float descale, std::uint8_t* out) {
  for (int d = 0; d < dims; ++d) {
    out[d] = to_e4m3_as_gpu(row.value(d) / descale);
  }
}

// Writes a row and head of k or v into its cache.
template <typename T>
void append_row(const AppendKvParams& p, const RotatedRow<T>& row, int dims, const RowPlace& place,
                int head, const AppendDescales& descales, void* cache, const OuterStrides& stride) {
  const std::int64_t offset = stride.offset(place.page, place.in_page, head);
  if (!p.is_quantized) {
    return store_row(row, dims, static_cast<T*>(cache) + offset);
  }
  float descale = 0.0f;
  if (descales.computed != nullptr) {
    descale = computed_descale(row, dims);
    descales.computed[descales.computed_stride.offset(place.page, place.in_page, head)] = descale;
  } else {
    descale = descales.given[std::max(place.sequence, 0) * descales.sequence_stride +
                             head * descales.head_stride];
  }
  quantize_row(row, dims, descale, static_cast<std::uint8_t*>(cache) + offset);
}

template <typename T>
void append_rows(const AppendKvParams& p) {
  parallel_for_rows(p.rows.count, [&](std::int64_t i) {
    const RowPlace place = p.rows.place_of(static_cast<int>(i));
    const std::int64_t batch = i / p.rows.per_batch;
    const std::int64_t token = i % p.rows.per_batch;
    const auto row = [&](const void* rows, const OuterStrides& stride, int head, int rotary_dims) {
      return RotatedRow<T>(static_cast<const T*>(rows) + stride.offset(batch, token, head),
                           p.rotary, rotary_dims, place.position);
    };
    for (int head = 0; place.page >= 0 && head < p.kv_heads; ++head) {
      append_row(p, row(p.k, p.k_stride, head, p.rotary.dims), p.head_dim, place, head, p.k_descale,
                 p.k_cache, p.k_cache_stride);
      append_row(p, row(p.v, p.v_stride, head, 0), p.value_dim, place, head, p.v_descale, p.v_cache,
                 p.v_cache_stride);
    }
    for (int head = 0; place.position >= 0 && head < p.heads; ++head) {
      store_row(row(p.q, p.q_stride, head, p.rotary.dims), p.head_dim,
                static_cast<T*>(p.q_out) + p.q_out_stride.offset(batch, token, head));
    }
  });
}

}  // namespace

void append_kv(const AppendKvParams& p, Stream) {
  with_element(p.dtype, [&]<typename T>(T*) { append_rows<T>(p); });
}

}  // namespace tilewright::cpu
