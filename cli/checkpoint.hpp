// Reading NVFP4 weights from checkpoints.
#pragma once

#include <string>

#include "cli/gemm_tensors.hpp"

namespace tilewright::cli {

// The weight of a layer, (1, N, K), from a safetensors file: NAME.weight, NAME.weight_scale and
// NAME.weight_scale_2 as ModelOpt names them, or NAME.weight_packed, NAME.weight_scale and
// NAME.weight_global_scale as compressed-tensors does. A global scale has one value, or one for
// each row, (N) or (N, 1); all must be positive and finite. Throws UsageError.
Nvfp4Operand read_weight(const std::string& path, const std::string& name);

}  // namespace tilewright::cli
