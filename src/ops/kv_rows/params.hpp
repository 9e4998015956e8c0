// Checked calls of tilewright/kv_rows.hpp, as their kernels receive them.
#pragma once

#include <cstdint>

#include "common/kv_row.hpp"

namespace tilewright {

struct QuantizeKvRowsParams {
  const void* x = nullptr;
  DType dtype = DType::bf16;  // of x
  std::int64_t x_stride = 0;  // of rows
  int rows = 0;               // T
  const std::int64_t* slots = nullptr;
  std::uint8_t* cache = nullptr;
  KvRowsLayout layout;
};

struct DequantizeKvRowsParams {
  const std::uint8_t* cache = nullptr;
  KvRowsLayout layout;
  const std::int64_t* slots = nullptr;
  int rows = 0;  // T
  void* out = nullptr;
  DType dtype = DType::bf16;    // of out
  std::int64_t out_stride = 0;  // of rows
};

}  // namespace tilewright
