// The launchers of the kernel nvfp4: one function for each of its configs.
#pragma once

#include <cstdint>

#include "cuda/gemm/nvfp4/plan.hpp"
#include "ops/gemm_nvfp4/params.hpp"
#include "ops/plan.hpp"

namespace tilewright::cuda {

// The sums of a tile's parts on their way to its reducer: partial_sums.cuh.
struct PartialSums {
  float* sums = nullptr;            // [blocks][threads * accumulators of a thread]
  std::uint64_t* flags = nullptr;   // [blocks]
  std::uint64_t epoch = 0;          // a flag of this value says that the sums are there; not 0
  std::uint64_t* ticket = nullptr;  // counts workers as they start; null without stream-K
};

// Queues the kernel as planned. Before it come the packing of a weight that is given as codes, and
// the dequantising of NVFP4 activations.
void launch_nvfp4(const GemmNvfp4Params& p, const Plan& plan, Stream stream);

// Queues config kIndex; p.a has 16 bits. Until earlier launches have ended the kernel reads p.b
// alone, if `b_is_ready`. Each config is compiled in a file made from instance.cu.in.
template <int kIndex>
void launch_nvfp4_config(const GemmNvfp4Params& p, const Nvfp4Plan& plan,
                         const PartialSums& partial, bool b_is_ready, Stream stream);

}  // namespace tilewright::cuda
