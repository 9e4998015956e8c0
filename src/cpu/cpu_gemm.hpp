#pragma once

#include "ops/gemm_nvfp4/params.hpp"

namespace tilewright::cpu {

// Tiles of both operands dequantised to FP32 and multiplied, over all cores.
void gemm_nvfp4(const GemmNvfp4Params& params, Stream);

}  // namespace tilewright::cpu
