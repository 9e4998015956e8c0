// Launchers of append_kv's kernels. Other operations append rows, too.
#pragma once

#include "ops/append_kv/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Queues the kernel on the current device; its arguments have been checked.
void launch_append_kv(const AppendKvParams& params, Stream stream);

}  // namespace tilewright::cuda
