// Columns of transposed rows, as tilewright/attention_fp8.hpp describes them.
#pragma once

#include "common/descale_blocks.hpp"

namespace tilewright {

// A sequence's columns begin at a multiple of this, as TMA takes 16 bytes of E4M3 at a time.
inline constexpr int kColumnMultiple = 16;

// The first column of a sequence. If rows are packed, columns are numbered through all sequences,
// and none shares its multiple with another one; otherwise each sequence has its own.
TILEWRIGHT_HOST_DEVICE constexpr int first_column(const int* cu_seqlens, int sequence) {
  return kColumnMultiple * first_descale_block(cu_seqlens, sequence, kColumnMultiple);
}

}  // namespace tilewright
