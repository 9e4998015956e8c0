#include "problems/dsv4_rows.hpp"

#include <array>
#include <cstring>

#include "common/ceil_div.hpp"
#include "common/kv_row.hpp"
#include "problems/random.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kGap_bytes = 32;
constexpr std::int64_t kPage_bytes = 576;  // pages in planes are padded to multiples of it
constexpr int kPadding = 0xff;

// Scales that normalised rows seldom or never have: tiny ones, and of E2M1, whose scales are E4M3,
// also 3.75, 4 and -4. A kernel multiplies twice where one is 4 or more, or negative.
constexpr std::array<std::uint8_t, 6> kOddE8m0 = {0, 1, 7, 60, 90, 110};
constexpr std::array<std::uint8_t, 6> kOddE4m3 = {0x00, 0x01, 0x07, 0x47, 0x48, 0xc8};

}  // namespace

HostTensor make_cache(KvRowFormat format, std::int64_t pages, std::int64_t page_size,
                      bool has_gaps) {
  const std::int64_t gap = has_gaps ? kGap_bytes : 0;
  const bool has_planes = parts_of(format).has_planes;
  const std::int64_t row_bytes = kv_row_bytes(format) + (has_planes ? 0 : gap);
  const std::int64_t used_bytes = page_size * row_bytes + gap;
  const std::int64_t page_bytes =
      has_planes ? ceil_div(used_bytes, kPage_bytes) * kPage_bytes : used_bytes;
  const DType dtype = format == KvRowFormat::bf16 ? DType::bf16 : DType::u8;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(dtype));
  HostTensor cache(dtype, {pages, page_size, kv_row_bytes(format) / element_bytes},
                   {page_bytes / element_bytes, row_bytes / element_bytes, 1});
  std::memset(cache.data(), kPadding, cache.bytes());
  return cache;
}

void fill_rows(const TensorView& cache, const std::vector<std::int64_t>& slots,
               const RowValues& values) {
  const auto count = static_cast<std::int64_t>(slots.size());
  if (count == 0) {
    return;
  }
  HostTensor x(DType::fp32, {count, kKvRowDims});
  for (std::int64_t i = 0; i < count * kKvRowDims; ++i) {
    const std::int64_t element = slots[static_cast<std::size_t>(i / kKvRowDims)] * kKvRowDims;
    reference::store(x.view(), i,
                     values.deviation * near_normal(values.seed, static_cast<std::uint64_t>(
                                                                     element + i % kKvRowDims)));
  }
  quantize_kv_rows({.x = x.view(),
                    .rows = cache,
                    .slot_mapping = contiguous(slots.data(), DType::int64, std::array{count})});

  const KvRowFormat format = *kv_row_format(cache.dtype, cache.shape[2]);
  const auto& odd = format == KvRowFormat::e2m1 ? kOddE4m3 : kOddE8m0;
  const KvRowParts parts = parts_of(format);
  const KvRowsLayout layout =
      kv_rows_layout(format, static_cast<int>(cache.shape[0]), static_cast<int>(cache.shape[1]),
                     cache.stride[0], cache.stride[1]);
  Random pick(values.seed);
  for (const std::int64_t slot : slots) {
    auto* const scales = static_cast<std::uint8_t*>(cache.data) + layout.place(slot).scales;
    for (int group = 0; values.odd_scales && group < parts.scales(); ++group) {
      scales[group] = pick.one_in(3) ? pick.one_of(odd) : scales[group];
    }
    std::memset(scales + parts.scales(), kPadding,
                static_cast<std::size_t>(parts.scales_bytes - parts.scales()));
  }
}

}  // namespace tilewright::test
