// The merge of the splits that blocks of the prefill kernel have computed.
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/prefill/launch.hpp"

namespace tilewright::cuda {
namespace {

// The rows of packed sequences with more than `others_tokens` new tokens; or all rows.
struct RowsOfChunks {
  const int* cu_seqlens;
  int sequences;
  int others_tokens;

  __device__ bool lacks(int row) const {
    if (cu_seqlens == nullptr) {
      return false;
    }
    int before = 0;  // how many sequences begin at the row or before it
    for (int end = sequences; before < end;) {
      const int middle = (before + end) / 2;
      if (cu_seqlens[middle] <= row) {
        before = middle + 1;
      } else {
        end = middle;
      }
    }
    if (before == 0) {
      return true;
    }
    const int end = cu_seqlens[before];
    return row >= end || end - cu_seqlens[before - 1] <= others_tokens;
  }
};

}  // namespace

void launch_prefill_merge(const AttentionWithKvCacheParams& p,
                          const AttentionWithKvCacheParams& splits, const PrefillPlan& plan,
                          Stream stream) {
  AttentionWithKvCacheParams rows = p;
  if (p.packed_q.cu_seqlens != nullptr) {
    rows.batch = 1;  // which has the tokens of all sequences
  }
  launch_merge_splits(rows, splits, plan.splits, stream,
                      RowsOfChunks{.cu_seqlens = p.packed_q.cu_seqlens,
                                   .sequences = p.batch,
                                   .others_tokens = plan.others_tokens},
                      {.may_start_early = true});
}

}  // namespace tilewright::cuda
