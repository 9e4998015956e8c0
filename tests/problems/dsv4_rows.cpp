#include "problems/dsv4_rows.hpp"

#include <array>
#include <cstring>

#include "common/block_scale.hpp"
#include "common/ceil_div.hpp"
#include "common/e2m1.hpp"
#include "problems/random.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kGap_bytes = 32;
constexpr std::int64_t kPage_bytes = 576;  // pages in planes are padded to multiples of it
constexpr int kDims = kKvRowDims;

// The values of a row, by their dims, and the scales' exponents.
class Values {
 public:
  Values(const RowValues& values, std::int64_t slot)
      : values_(values), first_(static_cast<std::uint64_t>(slot) * kDims) {}

  float at(int dim) const {
    return static_cast<float>(values_.deviation *
                              near_normal(values_.seed, first_ + static_cast<std::uint64_t>(dim)));
  }

  // A UE8M0 scale that fits values of this deviation, or another.
  std::uint8_t exponent(int group) const {
    constexpr std::array<std::uint8_t, 6> kTiny = {0, 1, 7, 60, 90, 110};
    const double random = near_normal(values_.seed + 1, first_ + static_cast<std::uint64_t>(group));
    const auto pick = static_cast<int>(1000 * (random + 10));
    if (values_.tiny_scales && pick % 3 == 0) {
      return kTiny[static_cast<std::size_t>(pick / 3) % kTiny.size()];
    }
    return static_cast<std::uint8_t>(120 + pick % 3);
  }

 private:
  const RowValues& values_;
  std::uint64_t first_;
};

// Values as E4M3 in groups with UE8M0 scales.
void fill_e4m3(const Values& values, int dims, int group, std::uint8_t* codes,
               std::uint8_t* scales) {
  for (int d = 0; d < dims; ++d) {
    const std::uint8_t exponent = values.exponent(d / group);
    scales[d / group] = exponent;
    const float scale = e8m0_to_float(exponent < 100 ? 120 : exponent);
    codes[d] = float_to_e4m3(values.at(d) / scale);
  }
}

void fill_bf16(const Values& values, int first, int end, const TensorView& out) {
  for (int d = first; d < end; ++d) {
    reference::store(out, d - first, values.at(d));
  }
}

// Values as E2M1 in groups of 16 with E4M3 scales.
void fill_e2m1(const Values& values, std::uint8_t* codes, std::uint8_t* scales) {
  constexpr int kGroup = 16;
  for (int first = 0; first < kDims; first += kGroup) {
    float amax = 0;
    for (int d = first; d < first + kGroup; ++d) {
      amax = std::max(amax, std::abs(values.at(d)));
    }
    const std::uint8_t scale = float_to_e4m3(amax / kE2m1Max);
    scales[first / kGroup] = scale;
    for (int d = first; d < first + kGroup; d += 2) {
      const auto code = [&](int dim) {
        return float_to_e2m1(values.at(dim) / std::max(e4m3_to_float(scale), 0x1p-9f));
      };
      codes[d / 2] = static_cast<std::uint8_t>(code(d) | code(d + 1) << 4);
    }
  }
}

}  // namespace

HostTensor make_cache(KvRowFormat format, std::int64_t pages, std::int64_t page_size,
                      bool has_gaps) {
  const std::int64_t gap = has_gaps ? kGap_bytes : 0;
  const bool is_bf16 = format == KvRowFormat::bf16;
  const bool has_planes = format == KvRowFormat::e4m3_bf16;
  const std::int64_t row_bytes = kv_row_bytes(format) + (has_planes ? 0 : gap);
  const std::int64_t page_bytes =
      has_planes ? ceil_div(page_size * row_bytes + gap, kPage_bytes) * kPage_bytes
                 : page_size * row_bytes + gap;
  const std::int64_t element_bytes = is_bf16 ? 2 : 1;
  HostTensor cache(is_bf16 ? DType::bf16 : DType::u8,
                   {pages, page_size, kv_row_bytes(format) / element_bytes},
                   {page_bytes / element_bytes, row_bytes / element_bytes, 1});
  std::memset(cache.data(), 0xff, cache.bytes());
  return cache;
}

void fill_row(const TensorView& cache, std::int64_t slot, const RowValues& row_values) {
  const Values values(row_values, slot);
  const std::int64_t page_size = cache.shape[1];
  const std::int64_t row = slot % page_size;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(cache.dtype));
  auto* const page =
      static_cast<std::uint8_t*>(cache.data) + slot / page_size * cache.stride[0] * element_bytes;
  std::uint8_t* const in_row = page + row * cache.stride[1] * element_bytes;
  const auto bf16_at = [](std::uint8_t* data) {
    TensorView view;
    view.data = data;
    view.dtype = DType::bf16;
    return view;
  };
  switch (*kv_row_format(cache.dtype, cache.shape[2])) {
    case KvRowFormat::bf16:
      return fill_bf16(values, 0, kDims, bf16_at(in_row));
    case KvRowFormat::e4m3_bf16:
      fill_e4m3(values, 448, 64, page + 576 * row, page + 576 * page_size + 8 * row);
      return fill_bf16(values, 448, kDims, bf16_at(page + 576 * row + 448));
    case KvRowFormat::e4m3:
      return fill_e4m3(values, kDims, 32, in_row, in_row + kDims);
    case KvRowFormat::e2m1:
      return fill_e2m1(values, in_row, in_row + kDims / 2);
  }
}

}  // namespace tilewright::test
