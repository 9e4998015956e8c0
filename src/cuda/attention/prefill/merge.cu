// The merge of the splits that blocks of the prefill kernel have computed.
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/prefill/launch.hpp"

namespace tilewright::cuda {
namespace {

// The rows of the only packed sequence; or all rows.
struct RowsOfOne {
  const int* cu_seqlens;

  __device__ bool lacks(int row) const {
    return cu_seqlens != nullptr && (row < cu_seqlens[0] || row >= cu_seqlens[1]);
  }
};

}  // namespace

void launch_prefill_merge(const AttentionWithKvCacheParams& p,
                          const AttentionWithKvCacheParams& splits, int count, Stream stream) {
  launch_merge_splits(p, splits, count, stream, RowsOfOne{p.packed_q.cu_seqlens});
}

}  // namespace tilewright::cuda
