// Checks that the calls of tilewright/nvfp4.hpp share, beside those of matrix_checks.hpp. They look
// at no data.
#pragma once

#include "ops/matrix_checks.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

// What GPU kernels ask of rows of values and of codes; memory on the CPU is aligned to elements.
inline constexpr int kValues_alignment_bytes = 16;
inline constexpr int kCodes_alignment_bytes = 8;

int alignment_of(Device device, int gpu_bytes);

void check_is_float(const char* argument, const ConstTensorView& tensor);

// A call's first matrix.
void check_matrix(const char* argument, const ConstTensorView& tensor);

// Of size 1, on the device of `like`.
void check_global_scale(const char* argument, const ConstTensorView& scale, Device device,
                        const char* like);

// Threads count blocks, padding included, in 32 bits.
void check_block_count(const char* argument, std::int64_t rows, std::int64_t blocks);

}  // namespace tilewright
