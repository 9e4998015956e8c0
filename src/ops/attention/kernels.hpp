// For rows of the table of attention that a kernel has in its own folder.
#pragma once

#include "ops/attention/params.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionFacts& facts);

namespace cuda {

// The production kernel's row of the table, with its variants.
Kernel<Attention> flash_kernel();

}  // namespace cuda
}  // namespace tilewright
