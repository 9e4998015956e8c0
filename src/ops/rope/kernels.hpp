// The GPU kernel of rope, for its table.
#pragma once

#include "ops/rope/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel on the current device. Its arguments have been checked.
void launch_rope(const RopeParams& params, Stream stream);

}  // namespace tilewright::cuda
