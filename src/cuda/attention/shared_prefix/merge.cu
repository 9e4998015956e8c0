// The merge of the two passes of a call with shared prefixes.
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/shared_prefix/launch.hpp"

namespace tilewright::cuda {

void launch_merge_passes(const SharedPrefixCalls& calls, Stream stream) {
  constexpr int kPasses = 2;
  launch_merge_splits(calls.merged, calls.parts, kPasses, stream, calls.rows_end,
                      {.may_start_early = true});
}

}  // namespace tilewright::cuda
