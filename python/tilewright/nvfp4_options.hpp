// Options that calls with NVFP4 matrices share.
#pragma once

#include <optional>

#include "tilewright/nvfp4.hpp"

namespace tilewright {

inline ScaleLayout to_layout(bool is_swizzled) {
  return is_swizzled ? ScaleLayout::swizzled : ScaleLayout::linear;
}

inline std::optional<GlobalScale> to_kind(std::optional<bool> is_decode) {
  return is_decode ? std::optional(*is_decode ? GlobalScale::decode : GlobalScale::encode)
                   : std::nullopt;
}

}  // namespace tilewright
