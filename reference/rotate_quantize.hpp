// The test oracle of tilewright/rotate_quantize.hpp: arithmetic in float64 rounded to FP32 where
// the contract rounds.
#pragma once

#include "tilewright/rotate_quantize.hpp"

namespace tilewright::reference {

// Writes into host tensors, byte for byte, what rotate_quantize() must write. All values of
// lengths, positions and fixed_descale are right.
void rotate_quantize(const RotateQuantizeTensors& tensors, const RotateQuantizeOptions& options);

}  // namespace tilewright::reference
