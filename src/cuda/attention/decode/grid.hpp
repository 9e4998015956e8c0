// The grid of a decode launch: chosen on the host, by what grids are estimated to take.
#pragma once

#include "cuda/attention/decode/plan.hpp"

namespace tilewright::cuda {

// So many workers, of so many blocks each.
struct DecodeGrid {
  int cluster;
  int workers;
};

// The grid for `problem` in a config on a GPU of `sms` SMs.
DecodeGrid best_decode_grid(const AttentionWithKvCacheProblem& problem, const DecodeConfig& config,
                            int sms);

// What a launch in that grid is estimated to take, in µs, beside what launches take in any grid and
// config. The config's operands are swapped.
float decode_cost(const AttentionWithKvCacheProblem& problem, const DecodeConfig& config, int sms);

}  // namespace tilewright::cuda
