#include "ops/kv_rows/checks.hpp"

#include <array>
#include <string>

#include "ops/attention_strides.hpp"
#include "ops/overlap.hpp"
#include "ops/tensor_checks.hpp"

namespace tilewright {
namespace {

constexpr std::array kVectors = {"tokens", "dims"};
constexpr std::array kRows = {"pages", "page size", "row"};

// Checks the vectors of a call, which `rows` and the slots then follow.
void check_vectors(const char* argument, const ConstTensorView& vectors) {
  check_tensor(argument, vectors, kVectors);
  if (vectors.dtype != DType::fp32 && vectors.dtype != DType::bf16) {
    fail(argument, "has dtype " + std::string(name(vectors.dtype)) + ", must be fp32 or bf16");
  }
  check_same(argument, "dims", vectors.shape[1], "a row's", kKvRowDims);
  check_last_dim_is_contiguous(argument, vectors, "dims must be");
}

void check_slot_mapping(const ConstTensorView& slots, const ConstTensorView& vectors,
                        const char* like) {
  check_tensor("slot_mapping", slots, DimNames(kVectors).first<1>());
  check_dtype("slot_mapping", slots, DType::int64);
  check_device("slot_mapping", slots, vectors.device, like);
  check_same("slot_mapping", "tokens", slots.shape[0], {like, "'s"}, vectors.shape[0]);
  check_last_dim_is_contiguous("slot_mapping", slots, "must be");
}

}  // namespace

void check_kv_rows(const char* argument, const ConstTensorView& rows) {
  check_tensor(argument, rows, kRows);
  const auto format = kv_row_format(rows.dtype, rows.shape[2]);
  if (!format) {
    fail(argument, "has rows of " + std::to_string(rows.shape[2]) + " " +
                       std::string(name(rows.dtype)) +
                       ", must be of 512 bf16, or of 584, 528 or 288 u8");
  }
  check_last_dim_is_contiguous(argument, rows, "rows must be");
  if (parts_of(*format).has_planes && rows.shape[1] > 1 && rows.stride[1] != rows.shape[2]) {
    fail(argument, "has stride " + std::to_string(rows.stride[1]) +
                       " in dimension 1, must be 584: a page's bytes are contiguous");
  }
}

void check_kv_rows_are_aligned(const char* argument, const ConstTensorView& rows,
                               int alignment_bytes) {
  ConstTensorView steps = rows;
  if (parts_of(*kv_row_format(rows.dtype, rows.shape[2])).has_planes) {
    steps.shape[1] = 1;  // its stride is not one from row to row
  }
  check_rows_are_aligned(argument, steps, alignment_bytes);
}

KvRowsLayout kv_rows_layout_of(const ConstTensorView& rows) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(rows.dtype));
  return kv_rows_layout(*kv_row_format(rows.dtype, rows.shape[2]), static_cast<int>(rows.shape[0]),
                        static_cast<int>(rows.shape[1]), element_bytes * stride_of(rows, 0),
                        element_bytes * stride_of(rows, 1));
}

void check_arguments(const QuantizeKvRowsTensors& t, const KvRowsOptions&) {
  check_vectors("x", t.x);
  check_kv_rows("rows", t.rows);
  check_device("rows", t.rows, t.x.device, "x");
  check_no_overlap("rows", t.rows);
  check_slot_mapping(t.slot_mapping, t.x, "x");
  check_is_apart("rows", t.rows, {{"x", t.x}, {"slot_mapping", t.slot_mapping}});
}

void check_arguments(const DequantizeKvRowsTensors& t, const KvRowsOptions&) {
  check_kv_rows("rows", t.rows);
  check_vectors("out", t.out);
  check_device("out", t.out, t.rows.device, "rows");
  check_no_overlap("out", t.out);
  check_slot_mapping(t.slot_mapping, t.out, "out");
  check_is_apart("out", t.out, {{"rows", t.rows}, {"slot_mapping", t.slot_mapping}});
}

void check_alignment(const QuantizeKvRowsTensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("x", t.x, kernel.alignment_bytes);
  check_kv_rows_are_aligned("rows", t.rows, kernel.alignment_bytes);
  check_elements_are_aligned("slot_mapping", t.slot_mapping);
}

void check_alignment(const DequantizeKvRowsTensors& t, const KernelInfo& kernel) {
  check_kv_rows_are_aligned("rows", t.rows, kernel.alignment_bytes);
  check_rows_are_aligned("out", t.out, kernel.alignment_bytes);
  check_elements_are_aligned("slot_mapping", t.slot_mapping);
}

}  // namespace tilewright
