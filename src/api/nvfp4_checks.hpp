// The checks of the calls of tilewright/nvfp4.hpp, beside those of tensor_checks.hpp: everything
// but the workspace. They look at no data.
#pragma once

#include "tensor_checks.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

void check_arguments(const QuantizeNvfp4Tensors& tensors, const QuantizeNvfp4Options& options);
void check_arguments(const DequantizeNvfp4Tensors& tensors, const DequantizeNvfp4Options& options);

// Of swizzle_scales() and unswizzle_scales(); that an output does not overlap itself aside.
void check_conversion(const ConstTensorView& linear, const ConstTensorView& swizzled);

}  // namespace tilewright
