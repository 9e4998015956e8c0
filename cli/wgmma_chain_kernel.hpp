// The launch of wgmma_chain_kernel.cu.
#pragma once

#include <cstdint>

#include "cli/wgmma_chain.hpp"

namespace tilewright::cli {

// Pointers to memory of the GPU.
struct WgmmaChainParams {
  const float* x;         // (sums, K): first factors
  const float* y;         // (sums, K): second factors
  const float* start;     // (sums): what the accumulator holds before
  float* sum;             // (sums): what element 0 of it holds after
  std::int32_t* differs;  // (sums): 1 where another element holds other bits, else 0
  int instructions;
};

void launch_wgmma_chains(const WgmmaChain& chain, const WgmmaChainParams& params, int sums,
                         Stream stream);

}  // namespace tilewright::cli
