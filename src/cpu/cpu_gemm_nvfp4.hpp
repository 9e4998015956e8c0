#pragma once

#include "ops/gemm_nvfp4/params.hpp"

namespace tilewright::cpu {

// Dequantises tiles of both operands to FP32 and multiplies them, on all cores.
void gemm_nvfp4(const GemmNvfp4Params& params, Stream);

}  // namespace tilewright::cpu
