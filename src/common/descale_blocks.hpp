// Blocks of rows that share a descale, as tilewright/attention_fp8.hpp describes them.
#pragma once

#include "common/divisor.hpp"

namespace tilewright {

// Rows [first, first + count) of a sequence; none if count is 0 or less.
struct RowBlock {
  int sequence = 0;
  int first = 0;
  int count = 0;
};

// The first block of a sequence. If rows are packed, blocks are numbered through all sequences;
// otherwise each sequence has its own.
TILEWRIGHT_HOST_DEVICE constexpr int first_descale_block(const int* cu_seqlens, int sequence,
                                                         int rows) {
  return cu_seqlens == nullptr ? 0 : cu_seqlens[sequence] / rows + sequence;
}

// A tensor's blocks.
struct DescaleBlocks {
  const int* cu_seqlens = nullptr;  // null: each sequence is a batch entry
  int batch = 0;                    // sequences
  int len = 0;                      // rows of each; packed: of all of them together
  int rows = 0;                     // of a block

  // How many blocks each sequence has; packed: all of them together.
  TILEWRIGHT_HOST_DEVICE constexpr int count() const {
    return cu_seqlens == nullptr ? (len + rows - 1) / rows : len / rows + batch;
  }

  // The rows of one of these blocks, of batch entry `entry` if rows are not packed. Searches packed
  // sequences in log2(batch) steps.
  TILEWRIGHT_HOST_DEVICE constexpr RowBlock block(int entry, int index) const {
    if (cu_seqlens == nullptr) {
      const int first = index * rows;
      return {.sequence = entry, .first = first, .count = len - first < rows ? len - first : rows};
    }
    int sequence = 0;  // whose first block is the block or one before it
    int end = batch;
    while (end - sequence > 1) {
      const int middle = sequence + (end - sequence) / 2;
      (index < first_descale_block(cu_seqlens, middle, rows) ? end : sequence) = middle;
    }
    const int first = (index - first_descale_block(cu_seqlens, sequence, rows)) * rows;
    const int left = cu_seqlens[sequence + 1] - cu_seqlens[sequence] - first;
    return {.sequence = sequence, .first = first, .count = left < rows ? left : rows};
  }
};

}  // namespace tilewright
