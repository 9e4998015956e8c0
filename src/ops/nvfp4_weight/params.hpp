// Checked calls of tilewright/nvfp4_weight.hpp, as their kernels receive them.
#pragma once

#include <cstdint>

#include "common/nvfp4_weight_tile.hpp"

namespace tilewright {

struct PrepackWeightParams {
  UnpackedWeight<const std::uint8_t> weight;
  std::uint8_t* packed = nullptr;
  std::int64_t packed_batch_stride = 0;
};

struct UnpackWeightParams {
  const std::uint8_t* packed = nullptr;
  std::int64_t packed_batch_stride = 0;
  UnpackedWeight<std::uint8_t> weight;
};

}  // namespace tilewright
