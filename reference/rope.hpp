// The test oracle of tilewright/rope.hpp.
#pragma once

#include "tilewright/rope.hpp"

namespace tilewright::reference {

// Writes into host tensors, byte for byte, what rope() must write. All positions are in the tables;
// out lies apart from x.
void rope(const RopeTensors& tensors, const RopeOptions& options);

}  // namespace tilewright::reference
