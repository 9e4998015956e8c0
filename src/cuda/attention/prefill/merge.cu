// The merge of the splits that blocks of the prefill kernel have computed.
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/prefill/launch.hpp"

namespace tilewright::cuda {

void launch_prefill_merge(const AttentionWithKvCacheParams& p,
                          const AttentionWithKvCacheParams& splits, int count, Stream stream) {
  launch_merge_splits(p, splits, count, stream);
}

}  // namespace tilewright::cuda
