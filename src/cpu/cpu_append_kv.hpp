#pragma once

#include "ops/append_kv/params.hpp"

namespace tilewright::cpu {

// Rows are shared over all cores, in the arithmetic that the GPU has, too.
void append_kv(const AppendKvParams& params, Stream);

}  // namespace tilewright::cpu
