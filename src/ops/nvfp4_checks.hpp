// Checks that the calls of tilewright/nvfp4.hpp share, besides those of matrix_checks.hpp. They
// read no data.
#pragma once

#include "ops/matrix_checks.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Of rows of values, whose alignment a kernel's row has, and of codes, for which half is enough.
void check_values_are_aligned(const char* argument, const ConstTensorView& values,
                              const KernelInfo& kernel);
void check_codes_are_aligned(const char* argument, const ConstTensorView& codes,
                             const KernelInfo& kernel);

// Checks a call's first matrix.
void check_matrix(const char* argument, const ConstTensorView& tensor);

// Checks a global scale: its size is 1, and it is on `device`.
void check_global_scale(const char* argument, const ConstTensorView& scale, Device device,
                        const char* like);

// Threads count blocks, padding included, in 32 bits, which must suffice.
void check_block_count(const char* argument, std::int64_t rows, std::int64_t blocks);

}  // namespace tilewright
