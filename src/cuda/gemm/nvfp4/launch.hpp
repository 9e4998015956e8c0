// The kernel nvfp4's host side, one function for each of its shapes.
#pragma once

#include <cstdint>

#include "cuda/gemm/nvfp4/plan.hpp"
#include "ops/gemm_nvfp4/params.hpp"
#include "ops/plan.hpp"

namespace tilewright::cuda {

// Sums of parts of a tile on their way to its owner: partial_sums.cuh.
struct PartialSums {
  float* sums = nullptr;           // [blocks][threads * accumulators of a thread]
  std::uint64_t* flags = nullptr;  // [blocks]
  std::uint64_t epoch = 0;         // by which a flag says that the sums are there; not 0
  std::uint64_t* ticket =
      nullptr;  // counts workers as they start; null where none waits for others
};

// Queues the kernel as planned, behind the packing of a weight that is given as codes and the
// dequantising of NVFP4 activations.
void launch_nvfp4(const GemmNvfp4Params& p, const Plan& plan, Stream stream);

// Queues config kIndex; p.a has 16 bits. It may start while launches before it are still at work,
// and then reads p.b alone, where that is ready. Each is compiled by itself, from instance.cu.in.
template <int kIndex>
void launch_nvfp4_config(const GemmNvfp4Params& p, const Nvfp4Plan& plan,
                         const PartialSums& partial, bool b_is_ready, Stream stream);

}  // namespace tilewright::cuda
