// The GPU kernels of convert_scales, for its table.
#pragma once

#include "ops/convert_scales/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel on the current device. Its arguments have been checked.
void launch_convert_scales(const ConvertScalesParams& params, Stream stream);

}  // namespace tilewright::cuda
