// Checks of a cache of tilewright/kv_rows.hpp, and its layout.
#pragma once

#include "common/kv_row.hpp"
#include "ops/tensor_checks.hpp"

namespace tilewright {

// Checks rank, dtype, the bytes of a row and which of them are contiguous.
void check_kv_rows(const char* argument, const ConstTensorView& rows);

// Checks the alignment of the base address and, on a GPU, of rows and pages.
void check_kv_rows_are_aligned(const char* argument, const ConstTensorView& rows,
                               int alignment_bytes);

// Of a cache that check_kv_rows() has passed.
KvRowsLayout layout_of(const ConstTensorView& rows);

}  // namespace tilewright
