// The GPU kernels of nvfp4_weight, for its tables.
#pragma once

#include "ops/nvfp4_weight/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Each queues its kernel on the current device. Its arguments have been checked.
void launch_prepack_nvfp4_weight(const PrepackWeightParams& params, Stream stream);
void launch_unpack_nvfp4_weight(const UnpackWeightParams& params, Stream stream);

}  // namespace tilewright::cuda
