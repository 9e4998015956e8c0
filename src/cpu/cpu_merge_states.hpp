#pragma once

#include "ops/merge_states/params.hpp"

namespace tilewright::cpu {

// Rows are shared over all cores; sums are taken in the order of the parts.
void merge_states(const MergeStatesParams& params, Stream);

}  // namespace tilewright::cpu
