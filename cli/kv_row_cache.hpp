// Caches of DeepSeek-V4's rows, and the names of their formats.
#pragma once

#include <cstdint>

#include "cli/options.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::cli {

inline const Names<KvRowFormat> kKvRowFormats = {
    {name(KvRowFormat::bf16), KvRowFormat::bf16},
    {name(KvRowFormat::e4m3_bf16), KvRowFormat::e4m3_bf16},
    {name(KvRowFormat::e4m3), KvRowFormat::e4m3},
    {name(KvRowFormat::e2m1), KvRowFormat::e2m1}};

// Pages whose bytes are a multiple of 576 where rows lie in planes, as engines have them.
inline reference::HostTensor make_kv_row_cache(KvRowFormat format, std::int64_t pages,
                                               std::int64_t page_size) {
  if (format == KvRowFormat::bf16) {
    return {DType::bf16, {pages, page_size, kKvRowDims}};
  }
  constexpr std::int64_t kUnit_bytes = 576;
  const std::int64_t row_bytes = kv_row_bytes(format);
  std::int64_t page_bytes = page_size * row_bytes;
  if (format == KvRowFormat::e4m3_bf16) {
    page_bytes = (page_bytes + kUnit_bytes - 1) / kUnit_bytes * kUnit_bytes;
  }
  return {DType::u8, {pages, page_size, row_bytes}, {page_bytes, row_bytes, 1}};
}

}  // namespace tilewright::cli
