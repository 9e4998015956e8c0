// For rows of the table of dsv4_attention that a kernel has in its own folder.
#pragma once

#include <vector>

#include "ops/dsv4_attention/params.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const Dsv4AttentionFacts& facts);

namespace cuda {

// The row of a kernel of the table.
Kernel<Dsv4Attention> dsv4_decode_kernel();

}  // namespace cuda
}  // namespace tilewright
