#include "ops/rotary_tables.hpp"

#include <array>
#include <string>

#include "ops/attention_strides.hpp"
#include "ops/tensor_checks.hpp"

namespace tilewright {
namespace {

constexpr std::array kTable = {"positions", "pairs"};

void check_table(const char* argument, const ConstTensorView& table, const char* like,
                 const ConstTensorView& rows) {
  check_tensor(argument, table, kTable);
  check_device(argument, table, rows.device, like);
  check_last_dim_is_contiguous(argument, table, "must be");
  check_elements_are_aligned(argument, table);
}

}  // namespace

void check_rotary_tables(const ConstTensorView& cos, const ConstTensorView& sin, const char* like,
                         const ConstTensorView& rows) {
  check_table("rotary_cos", cos, like, rows);
  if (cos.dtype != DType::fp32 && cos.dtype != rows.dtype) {
    fail("rotary_cos", "has dtype " + std::string(name(cos.dtype)) + ", must be fp32 or " +
                           std::string(name(rows.dtype)) + ", the dtype of " + like);
  }
  const std::int64_t head_dim = rows.shape[rows.rank - 1];
  if (2 * cos.shape[1] > head_dim) {
    fail("rotary_cos", "has " + std::to_string(cos.shape[1]) +
                           " pairs, must have at most half of " + like + "'s head_dim " +
                           std::to_string(head_dim));
  }
  check_table("rotary_sin", sin, like, rows);
  check_dtype("rotary_sin", sin, cos.dtype, ", the dtype of rotary_cos");
  for (int i = 0; i < 2; ++i) {
    check_same("rotary_sin", kTable[static_cast<std::size_t>(i)], sin.shape[i], "rotary_cos'",
               cos.shape[i]);
  }
}

Rotary rotary_of_tables(const ConstTensorView& cos, const ConstTensorView& sin) {
  return {.cos = cos.data,
          .sin = sin.data,
          .cos_stride = stride_of(cos, 0),
          .sin_stride = stride_of(sin, 0),
          .dtype = cos.dtype,
          .dims = static_cast<int>(2 * cos.shape[1])};
}

}  // namespace tilewright
