// The kernels of quantize_nvfp4 on GPUs, as its table has them.
#pragma once

#include "ops/quantize_nvfp4/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel, with checked arguments, on the current device.
void launch_quantize_nvfp4(const QuantizeNvfp4Params& params, Stream stream);

}  // namespace tilewright::cuda
