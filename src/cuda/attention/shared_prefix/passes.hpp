// The calls that a call with shared prefixes is made of. plan.hpp says what they do.
#pragma once

#include "cuda/attention/shared_prefix/plan.hpp"
#include "cuda/attention/shared_prefix/split.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

struct SharedPrefixCalls {
  SplitLengths lengths;
  void* prefix_q;  // the prefix pass's, to be filled with q's rows
  AttentionWithKvCacheParams prefix;
  AttentionWithKvCacheParams suffix;
  AttentionWithKvCacheParams merged;  // the call, whose rows are one sequence's if they are packed
  const int* rows_end;                // where the number of rows is; null: they are all that o has
};

// Those of a call whose new rows are in the caches already, and whose workspace is laid out so. If
// the prefix pass splits its keys, each split has a batch entry of its outputs.
SharedPrefixCalls calls_of(const AttentionWithKvCacheParams& p, const SharedPrefixWorkspace& at,
                           int prefix_splits);

}  // namespace tilewright::cuda
