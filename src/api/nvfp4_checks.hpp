// The checks of the calls of tilewright/nvfp4.hpp, beside those of tensor_checks.hpp: everything
// but the workspace. They look at no data.
#pragma once

#include "tensor_checks.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

void check_arguments(const QuantizeNvfp4Tensors& tensors, const QuantizeNvfp4Options& options);
void check_arguments(const DequantizeNvfp4Tensors& tensors, const DequantizeNvfp4Options& options);

// What a GPU kernel asks for; memory on the CPU is aligned to its elements.
int alignment_of(Device device, int gpu_bytes);

// Is there such a device, and are the kernels built for it?
void check_device_is_supported(const char* argument, Device device);

// Of swizzle_scales() and unswizzle_scales(); what must hold of an output aside.
void check_conversion(const ConstTensorView& linear, const ConstTensorView& swizzled);

}  // namespace tilewright
