// The test oracle of tilewright/merge_states.hpp.
#pragma once

#include <vector>

#include "tilewright/merge_states.hpp"

namespace tilewright::reference {

// The merged result in float64, dense: out (T, H, Dv), the statistics (H, T). out is normalised
// unless the tensors have row_max_out.
struct MergedStates {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> row_max;
  std::vector<double> row_sum;
};

// Of host tensors; of the outputs only row_max_out is looked at, for its presence.
MergedStates merge_states(const MergeStatesTensors& tensors);

}  // namespace tilewright::reference
