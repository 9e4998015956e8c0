#include "ops/rotary.hpp"

#include <array>
#include <string>

#include "ops/attention_checks.hpp"
#include "ops/attention_strides.hpp"

namespace tilewright {
namespace {

constexpr std::array kTable = {"positions", "pairs"};

void check_table(const char* argument, const ConstTensorView& table, const char* name,
                 const ConstTensorView& rows) {
  check_tensor(argument, table, kTable);
  check_device(argument, table, rows.device, name);
  check_last_dim_is_contiguous(argument, table, "must be");
  check_is_aligned(argument, table.data, static_cast<int>(size_bytes(table.dtype)));
}

}  // namespace

void check_rotary_tables(const RotaryTables& tables, const char* name,
                         const ConstTensorView& rows) {
  const ConstTensorView& cos = *tables.cos;
  const ConstTensorView& sin = *tables.sin;
  check_table("rotary_cos", cos, name, rows);
  if (cos.dtype != DType::fp32 && cos.dtype != rows.dtype) {
    fail("rotary_cos", "has dtype " + std::string(tilewright::name(cos.dtype)) +
                           ", must be fp32 or " + std::string(tilewright::name(rows.dtype)) +
                           ", the dtype of " + name);
  }
  if (2 * cos.shape[1] > head_dim_of(rows)) {
    fail("rotary_cos", "has " + std::to_string(cos.shape[1]) +
                           " pairs, must have at most half of " + name + "'s head_dim " +
                           std::to_string(head_dim_of(rows)));
  }
  check_table("rotary_sin", sin, name, rows);
  check_dtype("rotary_sin", sin, cos.dtype, ", the dtype of rotary_cos");
  for (int i = 0; i < 2; ++i) {
    check_same("rotary_sin", kTable[static_cast<std::size_t>(i)], sin.shape[i], "rotary_cos'",
               cos.shape[i]);
  }
}

Rotary rotary_of(const RotaryTables& tables, bool is_interleaved) {
  if (!tables.cos) {
    return {};
  }
  return {.cos = tables.cos->data,
          .sin = tables.sin->data,
          .cos_stride = stride_of(*tables.cos, 0),
          .sin_stride = stride_of(*tables.sin, 0),
          .dtype = tables.cos->dtype,
          .dims = static_cast<int>(2 * tables.cos->shape[1]),
          .is_interleaved = is_interleaved};
}

}  // namespace tilewright
