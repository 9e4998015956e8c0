// Between the choice of a shape and its compilation, each in a file of its own.
#pragma once

#include "cuda/gemm/nvfp4/plan.hpp"
#include "gemm_params.hpp"

namespace tilewright::cuda {

// Choice kIndex of kNvfp4Choices, whatever the plan says of it. `gemm` has 16-bit activations.
template <int kIndex>
void launch_nvfp4_choice(const GemmNvfp4Params& gemm, const Nvfp4Plan& plan, Stream stream);

}  // namespace tilewright::cuda
