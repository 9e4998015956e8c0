#include "reference/kv_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "reference/rotation.hpp"

namespace tilewright::reference {
namespace {

constexpr int kE8m0NaN = 255;
constexpr std::uint8_t kE4m3NaN = 0x7f;

// A row's parts in memory.
struct RowBytes {
  std::byte* codes;
  std::byte* bf16;
  std::byte* scales;
};

RowBytes row_of(const ConstTensorView& rows, std::int64_t slot) {
  const std::int64_t page_size = rows.shape[1];
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(rows.dtype));
  const std::int64_t in_page = slot % page_size;
  auto* const page = static_cast<std::byte*>(const_cast<void*>(rows.data)) +
                     slot / page_size * rows.stride[0] * element_bytes;
  std::byte* const row = page + in_page * rows.stride[1] * element_bytes;
  switch (*kv_row_format(rows.dtype, rows.shape[2])) {
    case KvRowFormat::bf16:
      return {.codes = nullptr, .bf16 = row, .scales = nullptr};
    case KvRowFormat::e4m3_bf16:
      return {.codes = page + in_page * 576,
              .bf16 = page + in_page * 576 + 448,
              .scales = page + page_size * 576 + in_page * 8};
    case KvRowFormat::e4m3:
      return {.codes = row, .bf16 = nullptr, .scales = row + 512};
    case KvRowFormat::e2m1:
      return {.codes = row, .bf16 = nullptr, .scales = row + 256};
  }
  return {};
}

// The first dim that is stored as BF16.
int first_bf16(KvRowFormat format) {
  return format == KvRowFormat::bf16 ? 0 : format == KvRowFormat::e4m3_bf16 ? 448 : 512;
}

// Values of E4M3 that share a scale.
int group_of(KvRowFormat format) { return format == KvRowFormat::e4m3 ? 32 : 64; }

int e8m0_scale(const std::vector<double>& values, int first, int count) {
  double amax = static_cast<double>(1e-4f);
  for (int d = first; d < first + count; ++d) {
    const double value = values[static_cast<std::size_t>(d)];
    if (std::isnan(value)) {
      return kE8m0NaN;
    }
    amax = std::max(amax, std::isinf(value) ? 0x1p128 : std::abs(value));
  }
  int exponent = -127;
  while (amax > std::ldexp(448.0, exponent)) {
    ++exponent;
  }
  return exponent + 127;
}

void quantize_e4m3(const std::vector<double>& values, KvRowFormat format, const RowBytes& row) {
  const int group = group_of(format);
  for (int first = 0; first < first_bf16(format); first += group) {
    const int scale = e8m0_scale(values, first, group);
    row.scales[first / group] = static_cast<std::byte>(scale);
    for (int d = first; d < first + group; ++d) {
      row.codes[d] = static_cast<std::byte>(
          scale == kE8m0NaN
              ? kE4m3NaN
              : round_to_e4m3(std::ldexp(values[static_cast<std::size_t>(d)], 127 - scale)));
    }
  }
  if (format == KvRowFormat::e4m3_bf16) {
    row.scales[7] = std::byte{0};
  }
}

void quantize_e2m1(const ConstTensorView& x, std::int64_t token, const RowBytes& row) {
  ConstTensorView vector = x;
  vector.shape[0] = 1;
  vector.data = static_cast<const std::byte*>(x.data) +
                token * x.stride[0] * static_cast<std::int64_t>(size_bytes(x.dtype));
  const QuantizedNvfp4 quantized = quantize_nvfp4(vector, 1.0f, GlobalScale::encode);
  std::memcpy(row.codes, quantized.codes.data(), quantized.codes.size());
  std::memcpy(row.scales, quantized.scales.data(), quantized.scales.size());
}

TensorView bf16_view(std::byte* data) { return {.data = data, .dtype = DType::bf16}; }

int byte_at(const std::byte* bytes, int index) { return static_cast<int>(bytes[index]); }

double dequantized(KvRowFormat format, const RowBytes& row, int dim) {
  const double value =
      format == KvRowFormat::e2m1
          ? e2m1_value(byte_at(row.codes, dim / 2) >> 4 * (dim % 2) & 15) *
                scale_value(DType::e4m3, byte_at(row.scales, dim / 16))
          : scale_value(DType::e4m3, byte_at(row.codes, dim)) *
                scale_value(DType::e8m0, byte_at(row.scales, dim / group_of(format)));
  return static_cast<float>(value);
}

}  // namespace

void quantize_kv_rows(const QuantizeKvRowsTensors& t) {
  const KvRowFormat format = *kv_row_format(t.rows.dtype, t.rows.shape[2]);
  for (std::int64_t token = 0; token < t.x.shape[0]; ++token) {
    const auto slot = static_cast<std::int64_t>(load(t.slot_mapping, token));
    if (slot < 0) {
      continue;
    }
    const RowBytes row = row_of(t.rows, slot);
    const std::int64_t offset = token * t.x.stride[0];
    const std::vector<double> values = row_values(t.x, offset, kKvRowDims);
    if (format == KvRowFormat::e2m1) {
      quantize_e2m1(t.x, token, row);
    } else if (format != KvRowFormat::bf16) {
      quantize_e4m3(values, format, row);
    }
    for (int d = first_bf16(format); d < kKvRowDims; ++d) {
      if (t.x.dtype == DType::bf16) {
        std::memcpy(row.bf16 + 2 * (d - first_bf16(format)),
                    static_cast<const std::byte*>(t.x.data) + 2 * (offset + d), 2);
      } else {
        store_as_gpu(bf16_view(row.bf16), d - first_bf16(format),
                     values[static_cast<std::size_t>(d)]);
      }
    }
  }
}

void dequantize_kv_rows(const DequantizeKvRowsTensors& t) {
  const KvRowFormat format = *kv_row_format(t.rows.dtype, t.rows.shape[2]);
  for (std::int64_t token = 0; token < t.out.shape[0]; ++token) {
    const auto slot = static_cast<std::int64_t>(load(t.slot_mapping, token));
    if (slot < 0) {
      continue;
    }
    const RowBytes row = row_of(t.rows, slot);
    const std::int64_t offset = token * t.out.stride[0];
    for (int d = 0; d < first_bf16(format); ++d) {
      store_as_gpu(t.out, offset + d, dequantized(format, row, d));
    }
    for (int d = first_bf16(format); d < kKvRowDims; ++d) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, row.bf16 + 2 * (d - first_bf16(format)), sizeof(bits));
      if (t.out.dtype == DType::bf16) {
        static_cast<std::uint16_t*>(t.out.data)[offset + d] = bits;
      } else {
        static_cast<std::uint32_t*>(t.out.data)[offset + d] = std::uint32_t{bits} << 16;
      }
    }
  }
}

}  // namespace tilewright::reference
