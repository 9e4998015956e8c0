// What the epilogue does to a sum, on CPU and GPU alike.
#pragma once

#include <limits>

#include "common/nvfp4_recipe.hpp"

namespace tilewright {

constexpr float scale_globally(float sum, float global_scale, GlobalScale kind) {
  if (!nvfp4::is_positive_and_finite(global_scale)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return kind == GlobalScale::encode ? sum / global_scale : sum * global_scale;
}

}  // namespace tilewright
