#pragma once

#include "ops/rope/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cpu {

// Rows are shared over all cores, in the arithmetic that the GPU has, too.
void rope(const RopeParams& params, Stream);

}  // namespace tilewright::cpu
