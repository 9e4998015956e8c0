// The kernels of dequantize_nvfp4 on GPUs, as its table has them.
#pragma once

#include "ops/dequantize_nvfp4/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel, with checked arguments, on the current device.
void launch_dequantize_nvfp4(const DequantizeNvfp4Params& params, Stream stream);

}  // namespace tilewright::cuda
