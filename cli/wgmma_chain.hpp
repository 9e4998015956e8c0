// Sums that a GPU's tensor cores make in the accumulator of WGMMAs.
#pragma once

#include <array>
#include <vector>

#include "cli/accumulator_probe.hpp"
#include "cli/machine.hpp"

namespace tilewright::cli {

inline constexpr int kMostInstructions = 16;  // of a chain
inline constexpr std::array kWgmmaColumns = {8, 16, 32, 64, 96, 128, 192, 256};

// Chains of wgmma.mma_async.m64nNkK with FP32 accumulators, K being 32 bytes of elements.
struct WgmmaChain {
  DType dtype = DType::e4m3;  // or bf16
  int n = 8;                  // one of kWgmmaColumns
  int instructions = 1;       // up to kMostInstructions

  int products() const { return 32 / size_bytes(dtype); }  // of an instruction
  int k() const { return instructions * products(); }
};

// What the accumulator holds after each of these sums of K products, whose factors must be values
// of the dtype. All of an accumulator's elements make the same sum; throws Error(cuda) if they do
// not agree, and if the launch fails.
std::vector<float> add_up_on(Machine& machine, const WgmmaChain& chain,
                             const std::vector<Summands>& sums);

}  // namespace tilewright::cli
