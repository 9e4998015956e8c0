// For rows of the table of attention_with_kvcache that a kernel has in its own folder.
#pragma once

#include <vector>

#include "ops/append_kv/params.hpp"
#include "ops/attention_with_kvcache/params.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionWithKvCacheFacts& facts);

// May "auto" take the kernel for the problem?
bool suits(const Kernel<AttentionWithKvCache>& kernel, const AttentionWithKvCacheProblem& problem);

// The call's new rows, which go behind those that the caches hold.
AppendKvParams new_rows_of(const AttentionWithKvCacheParams& params);

namespace cuda {

// Is prefill's kernel meant for the problem: can sequences have so many new tokens that they run in
// its tiles, and is it likely? A batch-invariant problem is not asked what is likely.
bool is_for_prefill(const AttentionWithKvCacheProblem& problem);

// The rows of kernels of the table, with their variants.
Kernel<AttentionWithKvCache> decode_kernel();
Kernel<AttentionWithKvCache> prefill_kernel();

}  // namespace cuda
}  // namespace tilewright
