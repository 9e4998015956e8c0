// For rows of the table of attention_fp8 that a kernel has in its own folder.
#pragma once

#include "ops/attention_fp8/params.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright {

// A kernel's facts in words.
std::vector<Limit> limits_of(const AttentionFp8Facts& facts);

namespace cuda {

// The production kernel's row of the table.
Kernel<AttentionFp8> flash_fp8_kernel();

}  // namespace cuda
}  // namespace tilewright
