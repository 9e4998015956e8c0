// The test oracle of tilewright/kv_rows.hpp: scales by a search for the least power of two, codes
// by a search for the nearest value, arithmetic in float64 rounded to FP32 where the contract
// rounds.
#pragma once

#include "tilewright/kv_rows.hpp"

namespace tilewright::reference {

// Write into host tensors, byte for byte, what the functions of the same names must write. All
// slots are -1 or in the cache.
void quantize_kv_rows(const QuantizeKvRowsTensors& tensors);
void dequantize_kv_rows(const DequantizeKvRowsTensors& tensors);

}  // namespace tilewright::reference
