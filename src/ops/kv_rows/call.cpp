// Calls of quantize_kv_rows() and dequantize_kv_rows(): what they ask for, and how kernels receive
// them.
#include "ops/call.hpp"

#include <span>
#include <utility>
#include <vector>

#include "ops/attention_strides.hpp"
#include "ops/kv_rows/checks.hpp"
#include "ops/kv_rows/params.hpp"
#include "ops/length_checks.hpp"
#include "ops/slot_checks.hpp"

namespace tilewright {
namespace {

KvRowsProblem problem_of(const ConstTensorView& vectors, const ConstTensorView& rows) {
  return {.dtype = vectors.dtype,
          .format = *kv_row_format(rows.dtype, rows.shape[2]),
          .rows = vectors.shape[0]};
}

// Are values of slots to be checked?
bool checks_values(const ConstTensorView& slots, const KvRowsOptions& options) {
  return options.check_values || slots.device.kind == DeviceKind::cpu;
}

// Checks the values of slots and returns them.
std::vector<std::int64_t> checked_slots(const ConstTensorView& slots, const ConstTensorView& rows,
                                        Stream stream) {
  std::vector<std::int64_t> values = values_of<std::int64_t>(slots, stream);
  check_slots(values, rows.shape[0] * rows.shape[1], "rows");
  return values;
}

void check_stored_slots_are_different(std::span<const std::int64_t> slots) {
  std::vector<SlotOfRow> stored;
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] >= 0) {
      stored.emplace_back(slots[row], static_cast<int>(row));
    }
  }
  check_slots_are_different("slot_mapping", std::move(stored));
}

}  // namespace

DeviceArgument device_of(const QuantizeKvRowsTensors& t) { return {"x", t.x.device}; }

KvRowsProblem problem_of(const QuantizeKvRowsTensors& t, const KvRowsOptions&) {
  return problem_of(t.x, t.rows);
}

QuantizeKvRowsParams params_of(const QuantizeKvRowsTensors& t, const KvRowsOptions&,
                               const KvRowsProblem& problem) {
  return {.x = t.x.data,
          .dtype = problem.dtype,
          .x_stride = stride_of(t.x, 0),
          .rows = static_cast<int>(problem.rows),
          .slots = static_cast<const std::int64_t*>(t.slot_mapping.data),
          .cache = static_cast<std::uint8_t*>(t.rows.data),
          .layout = kv_rows_layout_of(t.rows)};
}

void quantize_kv_rows(const QuantizeKvRowsTensors& t, const KvRowsOptions& options, Stream stream) {
  Call<QuantizeKvRows> call = prepare<QuantizeKvRows>(t, options);
  if (checks_values(t.slot_mapping, options)) {
    check_stored_slots_are_different(checked_slots(t.slot_mapping, t.rows, stream));
  }
  call.launch({}, stream);
}

DeviceArgument device_of(const DequantizeKvRowsTensors& t) { return {"rows", t.rows.device}; }

KvRowsProblem problem_of(const DequantizeKvRowsTensors& t, const KvRowsOptions&) {
  return problem_of(t.out, t.rows);
}

DequantizeKvRowsParams params_of(const DequantizeKvRowsTensors& t, const KvRowsOptions&,
                                 const KvRowsProblem& problem) {
  return {.cache = static_cast<const std::uint8_t*>(t.rows.data),
          .layout = kv_rows_layout_of(t.rows),
          .slots = static_cast<const std::int64_t*>(t.slot_mapping.data),
          .rows = static_cast<int>(problem.rows),
          .out = t.out.data,
          .dtype = problem.dtype,
          .out_stride = stride_of(t.out, 0)};
}

void dequantize_kv_rows(const DequantizeKvRowsTensors& t, const KvRowsOptions& options,
                        Stream stream) {
  Call<DequantizeKvRows> call = prepare<DequantizeKvRows>(t, options);
  if (checks_values(t.slot_mapping, options)) {
    checked_slots(t.slot_mapping, t.rows, stream);
  }
  call.launch({}, stream);
}

}  // namespace tilewright
