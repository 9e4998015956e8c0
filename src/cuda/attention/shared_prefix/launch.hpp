// The launches of a call with shared prefixes.
#pragma once

#include "cuda/attention/shared_prefix/passes.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues split_keys: the numbers of all sequences of `p`, and q's rows for the prefix pass.
void launch_split_keys(const AttentionWithKvCacheParams& p, const SplitLengths& lengths,
                       void* prefix_q, Stream stream);

// Queues the merge of the passes' results, where the prefix pass has so many splits.
void launch_merge_passes(const SharedPrefixCalls& calls, int prefix_splits, Stream stream);

// Queues the whole call, whose new rows are in the caches already, as planned.
void launch_shared_prefix(const AttentionWithKvCacheParams& p, const SharedPrefixDetails& details,
                          Stream stream);

}  // namespace tilewright::cuda
