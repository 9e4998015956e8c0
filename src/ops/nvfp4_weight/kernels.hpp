// The kernels of nvfp4_weight on GPUs, as its table has them.
#pragma once

#include "ops/nvfp4_weight/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queue the kernel, with checked arguments, on the current device.
void launch_prepack_nvfp4_weight(const PrepackWeightParams& params, Stream stream);
void launch_unpack_nvfp4_weight(const UnpackWeightParams& params, Stream stream);

}  // namespace tilewright::cuda
