// The GPU kernels of kv_rows, for their tables.
#pragma once

#include "ops/kv_rows/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Each queues its kernel on the current device. Its arguments have been checked.
void launch_quantize_kv_rows(const QuantizeKvRowsParams& params, Stream stream);
void launch_dequantize_kv_rows(const DequantizeKvRowsParams& params, Stream stream);

}  // namespace tilewright::cuda
