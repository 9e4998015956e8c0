// KV rows on the CPU: rows are shared over all cores, in the arithmetic that the GPU has, too.
//
// It is compiled without fusing products and sums (src/CMakeLists.txt), as nvfp4_block.hpp asks.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/kv_row.hpp"
#include "cpu/cpu_kv_rows.hpp"
#include "cpu/element.hpp"
#include "cpu/nvfp4_block.hpp"
#include "cpu/parallel.hpp"

namespace tilewright::cpu {
namespace {

// ---- Quantising

template <typename T>
std::uint8_t quantize_e4m3_group(const T* x, int count, std::uint8_t* codes) {
  std::uint32_t amax = 0;
  for (int i = 0; i < count; ++i) {
    amax = std::max(amax, magnitude_bits(x[i]));
  }
  const std::uint32_t scale = e8m0_scale_of(std::bit_cast<float>(amax));
  const float inverse = inverse_of_e8m0_scale(scale);
  for (int i = 0; i < count; ++i) {
    codes[i] = to_e4m3_as_gpu(to_float(x[i]) * inverse);
  }
  return static_cast<std::uint8_t>(scale);
}

Bf16 to_bf16(Bf16 value) { return value; }
Bf16 to_bf16(float value) {
  Bf16 rounded;
  from_float_as_gpu(value, rounded);
  return rounded;
}

template <typename T>
void quantize_row(const T* x, KvRowFormat format, std::uint8_t* data, std::uint8_t* scales) {
  const KvRowParts parts = parts_of(format);
  for (int group = 0; group < parts.scales(); ++group) {
    const int first = group * parts.group;
    scales[group] = format == KvRowFormat::e2m1
                        ? quantize_block(x + first, 1.0f, data + first / 2)
                        : quantize_e4m3_group(x + first, parts.group, data + first);
  }
  std::fill(scales + parts.scales(), scales + parts.scales_bytes, std::uint8_t{0});
  std::uint8_t* out = data + parts.code_bytes();
  for (int dim = parts.coded_dims; dim < kKvRowDims; ++dim, out += sizeof(Bf16)) {
    const Bf16 value = to_bf16(x[dim]);
    std::memcpy(out, &value, sizeof(value));  // it may lie anywhere
  }
}

// ---- Dequantising

void store_bf16(Bf16 value, Bf16& out) { out = value; }
void store_bf16(Bf16 value, float& out) { out = to_float(value); }

template <typename T>
void dequantize_row(const std::uint8_t* data, const std::uint8_t* scales, KvRowFormat format,
                    T* out) {
  const KvRowParts parts = parts_of(format);
  for (int dim = 0; dim < parts.coded_dims; ++dim) {
    from_float_as_gpu(decoded_dim(format, data, scales, dim), out[dim]);
  }
  data += parts.code_bytes();
  for (int dim = parts.coded_dims; dim < kKvRowDims; ++dim, data += sizeof(Bf16)) {
    Bf16 value;
    std::memcpy(&value, data, sizeof(value));
    store_bf16(value, out[dim]);
  }
}

// Calls f with a null pointer of the element type of `dtype`, fp32 or bf16.
template <typename F>
void with_vector_element(DType dtype, F f) {
  if (dtype == DType::fp32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<Bf16*>(nullptr));
  }
}

// Calls f(row, place) for the rows whose slots the cache has.
template <typename F>
void for_each_row(int rows, const std::int64_t* slots, const KvRowsLayout& layout, F f) {
  parallel_for_rows(rows, [&](std::int64_t row) {
    if (layout.has(slots[row])) {
      f(row, layout.place(slots[row]));
    }
  });
}

}  // namespace

void quantize_kv_rows(const QuantizeKvRowsParams& p, Stream) {
  with_vector_element(p.dtype, [&]<typename T>(T*) {
    for_each_row(p.rows, p.slots, p.layout, [&](std::int64_t row, const KvRowPlace& place) {
      quantize_row(static_cast<const T*>(p.x) + row * p.x_stride, p.layout.format,
                   p.cache + place.data, p.cache + place.scales);
    });
  });
}

void dequantize_kv_rows(const DequantizeKvRowsParams& p, Stream) {
  with_vector_element(p.dtype, [&]<typename T>(T*) {
    for_each_row(p.rows, p.slots, p.layout, [&](std::int64_t row, const KvRowPlace& place) {
      dequantize_row(p.cache + place.data, p.cache + place.scales, p.layout.format,
                     static_cast<T*>(p.out) + row * p.out_stride);
    });
  });
}

}  // namespace tilewright::cpu
