// Arguments that the calls of tilewright/nvfp4.hpp and gemm.hpp share, from Python's dicts.
#pragma once

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "native_tensor.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright {

// A Tensor of a dict that has one for each argument that is given, under its C++ name.
inline const TensorView& view(const nb::dict& tensors, const char* argument) {
  return nb::cast<const Tensor&>(tensors[argument]).view();
}

inline std::optional<TensorView> find(const nb::dict& tensors, const char* argument) {
  return tensors.contains(argument) ? std::optional(view(tensors, argument)) : std::nullopt;
}

inline ScaleLayout to_layout(bool is_swizzled) {
  return is_swizzled ? ScaleLayout::swizzled : ScaleLayout::linear;
}

inline std::optional<GlobalScale> to_kind(std::optional<bool> is_decode) {
  return is_decode ? std::optional(*is_decode ? GlobalScale::decode : GlobalScale::encode)
                   : std::nullopt;
}

inline Stream to_stream(std::uintptr_t stream) { return reinterpret_cast<Stream>(stream); }

}  // namespace tilewright
