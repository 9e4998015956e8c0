// The formats of tilewright/kv_rows.hpp, for CPU and GPU alike: what a row is made of, where its
// parts lie in a page, and the arithmetic of its scales. It has quotients and products only, which
// no compiler can fuse into one operation.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "common/block_scale.hpp"
#include "common/divisor.hpp"
#include "common/e2m1.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright {

// The parts of a row. Its data are codes, then the dims that are stored as BF16.
struct KvRowParts {
  int coded_dims = 0;       // the first ones; the others are BF16
  int code_bits = 0;        // of a coded dim
  int group = 1;            // coded dims that share a scale
  int scales_bytes = 0;     // of a row: a byte each, and padding
  bool has_planes = false;  // a page's scales lie behind all of its data, not behind their row's

  constexpr int code_bytes() const { return coded_dims * code_bits / 8; }
  constexpr int data_bytes() const { return code_bytes() + 2 * (kKvRowDims - coded_dims); }
  constexpr int scales() const { return coded_dims / group; }
  constexpr int row_bytes() const { return data_bytes() + scales_bytes; }
};

constexpr KvRowParts parts_of(KvRowFormat format) {
  constexpr int kPlain = kKvRowDims - kKvRowRotaryDims;
  switch (format) {
    case KvRowFormat::bf16:
      break;
    case KvRowFormat::e4m3_bf16:
      return {
          .coded_dims = kPlain, .code_bits = 8, .group = 64, .scales_bytes = 8, .has_planes = true};
    case KvRowFormat::e4m3:
      return {.coded_dims = kKvRowDims, .code_bits = 8, .group = 32, .scales_bytes = 16};
    case KvRowFormat::e2m1:
      return {.coded_dims = kKvRowDims, .code_bits = 4, .group = 16, .scales_bytes = 32};
  }
  return {};
}

static_assert(parts_of(KvRowFormat::bf16).row_bytes() == kv_row_bytes(KvRowFormat::bf16));
static_assert(parts_of(KvRowFormat::e4m3_bf16).row_bytes() == kv_row_bytes(KvRowFormat::e4m3_bf16));
static_assert(parts_of(KvRowFormat::e4m3).row_bytes() == kv_row_bytes(KvRowFormat::e4m3));
static_assert(parts_of(KvRowFormat::e2m1).row_bytes() == kv_row_bytes(KvRowFormat::e2m1));

// ---- Places

// Where a row's parts lie, in bytes from the cache's first.
struct KvRowPlace {
  std::int64_t data = 0;
  std::int64_t scales = 0;
};

// How the rows of a checked cache lie.
struct KvRowsLayout {
  KvRowFormat format = KvRowFormat::bf16;
  int pages = 0;
  Divisor page_size{1};
  std::int64_t page_bytes = 0;     // from a page to the next
  std::int64_t row_bytes = 0;      // from a row's data to those of the next, in a page
  std::int64_t scales_offset = 0;  // of the first row's scales, in a page
  std::int64_t scales_bytes = 0;   // from a row's scales to those of the next

  constexpr bool has(std::int64_t slot) const {
    return slot >= 0 && slot < std::int64_t{pages} * page_size;
  }

  constexpr KvRowPlace place_in_page(std::int64_t page, int row) const {
    const std::int64_t first = page * page_bytes;
    return {.data = first + row * row_bytes, .scales = first + scales_offset + row * scales_bytes};
  }

  // Of a slot that the cache has.
  constexpr KvRowPlace place(std::int64_t slot) const {
    // A Divisor takes 31 bits. A GPU divides 64 bits by many instructions.
    constexpr std::int64_t kMostDividend = std::numeric_limits<int>::max();
    const std::int64_t page =
        slot <= kMostDividend ? static_cast<int>(slot) / page_size : slot / int{page_size};
    return place_in_page(page, static_cast<int>(slot - page * page_size));
  }
};

// `row_bytes` counts from a row to the next in the cache's tensor. In planes, where no row lies in
// one piece, it does not matter.
constexpr KvRowsLayout kv_rows_layout(KvRowFormat format, int pages, int page_size,
                                      std::int64_t page_bytes, std::int64_t row_bytes) {
  const KvRowParts parts = parts_of(format);
  const std::int64_t data_bytes = parts.data_bytes();
  return {.format = format,
          .pages = pages,
          .page_size = Divisor(page_size),
          .page_bytes = page_bytes,
          .row_bytes = parts.has_planes ? data_bytes : row_bytes,
          .scales_offset = parts.has_planes ? page_size * data_bytes : data_bytes,
          .scales_bytes = parts.has_planes ? parts.scales_bytes : row_bytes};
}

// ---- Scales

inline constexpr std::uint32_t kE8m0NaN = 0xff;

// The bits of the UE8M0 scale of a group of E4M3, from its largest magnitude: 2^k is the least
// power of two with max(amax, 1e-4) <= 448 * 2^k. As 448 = 1.75 * 2^8, amax = m * 2^e with 1 <= m <
// 2 has k = e - 8, or one more if m > 1.75. Infinity counts as 2^128.
constexpr std::uint32_t e8m0_scale_of(float amax) {
  constexpr float kLeast = 1e-4f;
  constexpr std::uint32_t kRoundUp = 0x1fffff;  // carries if the mantissa is above 0.75
  if (amax != amax) {
    return kE8m0NaN;
  }
  return ((std::bit_cast<std::uint32_t>(std::max(amax, kLeast)) + kRoundUp) >> 23) - 8;
}

// 1 / 2^k of such a scale, exactly; NaN of NaN.
constexpr float inverse_of_e8m0_scale(std::uint32_t bits) {
  return bits == kE8m0NaN ? std::numeric_limits<float>::quiet_NaN()
                          : std::bit_cast<float>((254u - bits) << 23);
}

// ---- Values

// code * scale, in FP32. Any NaN has the bits 0x7fc00000.
constexpr float decoded(float code, float scale) {
  const float value = code * scale;
  return value == value ? value : std::numeric_limits<float>::quiet_NaN();
}

// The value of dim d of a row with codes.
constexpr float decoded_dim(KvRowFormat format, const std::uint8_t* codes,
                            const std::uint8_t* scales, int dim) {
  const std::uint32_t scale = scales[dim / parts_of(format).group];
  return format == KvRowFormat::e2m1
             ? decoded(e2m1_to_float(codes[dim / 2] >> 4 * (dim % 2)), e4m3_to_float(scale))
             : decoded(e4m3_to_float(codes[dim]), e8m0_to_float(scale));
}

}  // namespace tilewright
