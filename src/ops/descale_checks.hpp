// Checks of transposed rows and of descales of blocks of rows, which the FP8 operations share.
#pragma once

#include <cstdint>

#include "tilewright/tensor.hpp"

namespace tilewright {

// Rows ([B,] N, H, D), in whose place others come transposed.
struct RowsLike {
  const char* name;
  const ConstTensorView& rows;
  const char* cu_seqlens;  // the name of what makes them packed
  bool is_packed;
};

// Checks rows ([B,] H, D, N'): their form, and that all sizes but D and N' match.
void check_columns(const char* argument, const ConstTensorView& columns, const RowsLike& like);

// Checks N', where rows are of `batch` sequences.
void check_column_count(const char* argument, const ConstTensorView& columns, const RowsLike& like,
                        std::int64_t batch);

// Checks that the option descale_rows is 64 or 128; `must_be` says so.
void check_descale_rows(int descale_rows, const char* must_be);

// What the sizes of descales of blocks follow from.
struct BlockSizes {
  const char* rows_name;  // with an s behind it
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t length;  // of a sequence; packed: of all of them together
  int descale_rows;
  bool is_packed;
};

// Checks descales ([B,] H, blocks).
void check_blocks(const char* argument, const ConstTensorView& descale, const BlockSizes& sizes);

}  // namespace tilewright
