// For rows of the table of attention_with_kvcache that a kernel has in its own folder.
#pragma once

#include <vector>

#include "ops/append_kv/params.hpp"
#include "ops/attention_with_kvcache/params.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionWithKvCacheFacts& facts);

// The call's new rows, which go behind those that the caches hold.
AppendKvParams new_rows_of(const AttentionWithKvCacheParams& params);

namespace cuda {

// The rows of kernels of the table, with their variants.
Kernel<AttentionWithKvCache> decode_kernel();
Kernel<AttentionWithKvCache> prefill_kernel();

}  // namespace cuda
}  // namespace tilewright
