#include "ops/kv_row_checks.hpp"

#include <array>
#include <string>

#include "ops/attention_strides.hpp"

namespace tilewright {
namespace {

constexpr std::array kRows = {"pages", "page_size", "row"};

}  // namespace

void check_kv_rows(const char* argument, const ConstTensorView& rows) {
  check_tensor(argument, rows, kRows);
  const auto format = kv_row_format(rows.dtype, rows.shape[2]);
  if (!format) {
    fail(argument, "has dtype " + std::string(name(rows.dtype)) + " and rows of " +
                       std::to_string(rows.shape[2]) +
                       " elements, must have 512 of bf16, or 584, 528 or 288 of u8");
  }
  check_last_dim_is_contiguous(argument, rows, "row must be");
  if (*format == KvRowFormat::e4m3_bf16 && rows.shape[1] > 1 && rows.stride[1] != rows.shape[2]) {
    fail(argument, "has stride " + std::to_string(rows.stride[1]) +
                       " in dimension 1, must be 584: a page's bytes are contiguous");
  }
}

void check_kv_rows_are_aligned(const char* argument, const ConstTensorView& rows,
                               int alignment_bytes) {
  ConstTensorView pages = rows;
  if (kv_row_format(rows.dtype, rows.shape[2]) == KvRowFormat::e4m3_bf16) {
    pages.shape[1] = 1;  // its rows lie 576 bytes apart, whatever the stride says
  }
  check_rows_are_aligned(argument, pages, alignment_bytes);
}

KvRowsLayout layout_of(const ConstTensorView& rows) {
  const KvRowFormat format = *kv_row_format(rows.dtype, rows.shape[2]);
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(rows.dtype));
  const KvRowParts parts = parts_of(format);
  return {
      .format = format,
      .pages = static_cast<int>(rows.shape[0]),
      .page_size = static_cast<int>(rows.shape[1]),
      .page_bytes = stride_of(rows, 0) * element_bytes,
      .row_bytes = parts.has_planes ? parts.stride_bytes() : stride_of(rows, 1) * element_bytes};
}

}  // namespace tilewright
