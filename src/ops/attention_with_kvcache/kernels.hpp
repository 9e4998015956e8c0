// For rows of the table of attention_with_kvcache that a kernel has in its own folder.
#pragma once

#include <vector>

#include "ops/attention_with_kvcache/params.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionWithKvCacheFacts& facts);

namespace cuda {

// The decode kernel's row of the table, with its variants.
Kernel<AttentionWithKvCache> decode_kernel();

}  // namespace cuda
}  // namespace tilewright
