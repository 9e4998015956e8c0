// The calls that a call with shared prefixes is made of. plan.hpp says what they do.
#pragma once

#include "cuda/attention/shared_prefix/plan.hpp"
#include "cuda/attention/shared_prefix/split.hpp"
#include "ops/attention_with_kvcache/params.hpp"

namespace tilewright::cuda {

struct SharedPrefixCalls {
  SplitLengths lengths;
  void* packed_q;  // (T, H, D), to be filled with q's rows; null: q itself has that form
  AttentionWithKvCacheParams prefix;
  AttentionWithKvCacheParams suffix;

  // The merge of `parts` into the outputs of `merged`: the suffix pass's results are merged.batch
  // batch entries behind those of the prefix pass.
  AttentionWithKvCacheParams merged;
  AttentionWithKvCacheParams parts;
  const int* rows_end;  // where the number of rows is; null: they are all that o has
};

// Those of a call whose new rows are in the caches already, and whose workspace is laid out so.
SharedPrefixCalls calls_of(const AttentionWithKvCacheParams& p, const SharedPrefixWorkspace& at);

}  // namespace tilewright::cuda
