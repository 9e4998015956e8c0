// The tables of a rotation by position (RoPE), which operations that rotate share.
#pragma once

#include "common/rotary.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Checks rotary_cos and rotary_sin, for heads of `rows`, an argument with the name `like`.
void check_rotary_tables(const ConstTensorView& cos, const ConstTensorView& sin, const char* like,
                         const ConstTensorView& rows);

// A rotation by checked tables, of pairs half of the rotated dims apart.
Rotary rotary_of_tables(const ConstTensorView& cos, const ConstTensorView& sin);

}  // namespace tilewright
