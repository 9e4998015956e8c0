// The checks of the calls of tilewright/nvfp4_weight.hpp. They read no data.
#pragma once

#include "tilewright/nvfp4_weight.hpp"

namespace tilewright {

void check_arguments(const PrepackNvfp4WeightTensors& tensors, ScaleLayout scale_layout);
void check_arguments(const UnpackNvfp4WeightTensors& tensors, ScaleLayout scale_layout);

}  // namespace tilewright
