// The merge of the two passes of a call with shared prefixes.
#include "common/divisor.hpp"
#include "cuda/attention/blocks/merge_splits.cuh"
#include "cuda/attention/shared_prefix/launch.hpp"

namespace tilewright::cuda {
namespace merge_passes {

// The prefix pass's splits, then the suffix pass.
struct PassResults {
  PartialRows prefix;
  PartialRows suffix;
  Divisor group;  // query heads that share a KV head
  int q_len;      // tokens of a batch entry
  int count;

  __device__ PartialRow place(int split, int batch, int row, int head) const {
    if (split == count - 1) {
      return suffix.at(batch, row, head);
    }
    const PrefixRow its = prefix_row(batch * q_len + row, head, group);
    return prefix.at(split, its.row, its.kv_head);
  }
};

}  // namespace merge_passes

void launch_merge_passes(const SharedPrefixCalls& calls, int prefix_splits, Stream stream) {
  const AttentionWithKvCacheParams& p = calls.merged;
  launch_merge(p,
               merge_passes::PassResults{.prefix = partial_rows(calls.prefix),
                                         .suffix = partial_rows(calls.suffix),
                                         .group = Divisor(p.heads / p.kv_heads),
                                         .q_len = p.q_len,
                                         .count = prefix_splits + 1},
               stream, RowsBefore{calls.rows_end}, {.may_start_early = true});
}

}  // namespace tilewright::cuda
