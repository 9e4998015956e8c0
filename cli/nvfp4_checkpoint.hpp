// NVFP4 weights from checkpoints of ModelOpt and compressed-tensors.
#pragma once

#include <string>

#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {

// An operand in NVFP4: matrices (l, rows, k) with scales, which are linear at first, and a global
// scale, (1) or (l, rows).
struct Nvfp4Operand {
  reference::HostTensor codes;
  reference::HostTensor scales;
  reference::HostTensor global_scale;
  GlobalScale kind = GlobalScale::encode;
};

// The weight of a layer, (1, N, K), from a safetensors file: NAME.weight, NAME.weight_scale and
// NAME.weight_scale_2 as ModelOpt names them, or NAME.weight_packed, NAME.weight_scale and
// NAME.weight_global_scale as compressed-tensors does. A global scale has one value, or one for
// each row, (N) or (N, 1); all must be positive and finite. Throws UsageError.
Nvfp4Operand read_nvfp4_weight(const std::string& path, const std::string& name);

}  // namespace tilewright::cli
