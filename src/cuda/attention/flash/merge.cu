// The merge of the splits that blocks of the flash kernel have computed.
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/flash/launch.hpp"

namespace tilewright::cuda {

void launch_flash_merge(const AttentionParams& p, const AttentionParams& splits, int count,
                        Stream stream) {
  launch_merge_splits(p, splits, count, stream);
}

}  // namespace tilewright::cuda
