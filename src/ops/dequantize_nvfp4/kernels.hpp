// The GPU kernels of dequantize_nvfp4, for its table.
#pragma once

#include "ops/dequantize_nvfp4/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel on the current device. Its arguments have been checked.
void launch_dequantize_nvfp4(const DequantizeNvfp4Params& params, Stream stream);

}  // namespace tilewright::cuda
