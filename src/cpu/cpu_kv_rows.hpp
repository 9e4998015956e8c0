#pragma once

#include "ops/kv_rows/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cpu {

// Rows are shared over all cores, in the arithmetic that the GPU has, too.
void quantize_kv_rows(const QuantizeKvRowsParams& params, Stream);
void dequantize_kv_rows(const DequantizeKvRowsParams& params, Stream);

}  // namespace tilewright::cpu
