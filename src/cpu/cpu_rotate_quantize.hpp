#pragma once

#include "ops/rotate_quantize/params.hpp"

namespace tilewright::cpu {

// Blocks of rows are shared over all cores, in the arithmetic that the GPU has, too.
void rotate_quantize(const RotateQuantizeParams& params, Stream);

}  // namespace tilewright::cpu
