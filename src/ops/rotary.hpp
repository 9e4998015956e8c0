// Rotation by positions (RoPE): its arguments' checks, and how params get them.
#pragma once

#include <optional>

#include "common/rotary.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// rotary_cos and rotary_sin: both are given, or neither.
struct RotaryTables {
  const std::optional<ConstTensorView>& cos;
  const std::optional<ConstTensorView>& sin;
};

// Checks given tables for rows of `rows`, the argument `name`.
void check_rotary_tables(const RotaryTables& tables, const char* name, const ConstTensorView& rows);

// Checked tables, as kernels receive them; none if they are absent.
Rotary rotary_of(const RotaryTables& tables, bool is_interleaved);

}  // namespace tilewright
