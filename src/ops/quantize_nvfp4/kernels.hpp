// The GPU kernels of quantize_nvfp4, for its table.
#pragma once

#include "ops/quantize_nvfp4/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel on the current device. Its arguments have been checked.
void launch_quantize_nvfp4(const QuantizeNvfp4Params& params, Stream stream);

}  // namespace tilewright::cuda
