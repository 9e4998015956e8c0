// The kernels of convert_scales on GPUs, as its table has them.
#pragma once

#include "ops/convert_scales/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel, with checked arguments, on the current device.
void launch_convert_scales(const ConvertScalesParams& params, Stream stream);

}  // namespace tilewright::cuda
