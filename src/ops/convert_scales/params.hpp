// A checked call of swizzle_scales() or unswizzle_scales(), as its kernels receive it.
#pragma once

#include <cstdint>

#include "common/scale_layout.hpp"

namespace tilewright {

// `rows` rows of `blocks` scales, from one layout to the other.
struct ConvertScalesParams {
  Scales<const std::uint8_t> from;
  Scales<std::uint8_t> to;
  int rows = 0;
  int blocks = 0;
};

}  // namespace tilewright
