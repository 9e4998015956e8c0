// What the row of an attention kernel in a file of its own needs, and such rows.
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
