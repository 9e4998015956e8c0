// The test oracle of tilewright/append_kv.hpp: places by a walk over sequences, arithmetic in
// float64 rounded to FP32 where the contract rounds.
#pragma once

#include "tilewright/append_kv.hpp"

namespace tilewright::reference {

// Writes into host tensors, byte for byte, what append_kv() must write. All values of slots,
// lengths, pages and positions are right.
void append_kv(const AppendKvTensors& tensors, const AppendKvOptions& options);

}  // namespace tilewright::reference
