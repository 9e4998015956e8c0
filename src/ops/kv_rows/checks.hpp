// The checks of the calls of tilewright/kv_rows.hpp. A cache's own are for all operations on such
// rows.
#pragma once

#include "common/kv_row.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Checks a cache of rows by itself.
void check_kv_rows(const char* argument, const ConstTensorView& rows);

// Checks that addresses, pages and rows are aligned as a kernel needs it.
void check_kv_rows_are_aligned(const char* argument, const ConstTensorView& rows,
                               int alignment_bytes);

// How the rows of a checked cache lie.
KvRowsLayout kv_rows_layout_of(const ConstTensorView& rows);

// Check a call as far as it can be before a kernel is selected. They read no data.
void check_arguments(const QuantizeKvRowsTensors& tensors, const KvRowsOptions& options);
void check_arguments(const DequantizeKvRowsTensors& tensors, const KvRowsOptions& options);

// Check that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const QuantizeKvRowsTensors& tensors, const KernelInfo& kernel);
void check_alignment(const DequantizeKvRowsTensors& tensors, const KernelInfo& kernel);

}  // namespace tilewright
