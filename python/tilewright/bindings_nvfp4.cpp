// The calls of tilewright/nvfp4.hpp and nvfp4_weight.hpp for the Python layer.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "native_call.hpp"
#include "nvfp4_options.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {
namespace {

using QuantizeNvfp4Call = NativeCall<QuantizeNvfp4, quantize_nvfp4_workspace_bytes, quantize_nvfp4>;

QuantizeNvfp4Call make_quantize_call(const nb::dict& tensors, bool swizzled, bool decode) {
  return {tensors,
          {.x = view(tensors, "x"),
           .codes = view(tensors, "codes"),
           .scales = view(tensors, "scales"),
           .global_scale = find(tensors, "global_scale"),
           .computed_global_scale = find(tensors, "computed_global_scale")},
          {.scale_layout = to_layout(swizzled), .global_scale_kind = to_kind(decode)}};
}

void py_dequantize(const nb::dict& tensors, bool swizzled, std::optional<bool> decode,
                   std::uintptr_t stream) {
  const DequantizeNvfp4Tensors t{.codes = view(tensors, "codes"),
                                 .scales = view(tensors, "scales"),
                                 .out = view(tensors, "out"),
                                 .global_scale = find(tensors, "global_scale")};
  const nb::gil_scoped_release released;
  dequantize_nvfp4(t, {.scale_layout = to_layout(swizzled), .global_scale_kind = to_kind(decode)},
                   to_stream(stream));
}

void py_swizzle(const Tensor& linear, const Tensor& swizzled, std::uintptr_t stream) {
  const nb::gil_scoped_release released;
  swizzle_scales(linear.view(), swizzled.view(), to_stream(stream));
}

void py_unswizzle(const Tensor& swizzled, const Tensor& linear, std::uintptr_t stream) {
  const nb::gil_scoped_release released;
  unswizzle_scales(swizzled.view(), linear.view(), to_stream(stream));
}

void py_prepack(const nb::dict& tensors, bool swizzled, std::uintptr_t stream) {
  const PrepackNvfp4WeightTensors t{.codes = view(tensors, "codes"),
                                    .scales = view(tensors, "scales"),
                                    .packed = view(tensors, "packed")};
  const nb::gil_scoped_release released;
  prepack_nvfp4_weight(t, to_layout(swizzled), to_stream(stream));
}

void py_unpack(const nb::dict& tensors, bool swizzled, std::uintptr_t stream) {
  const UnpackNvfp4WeightTensors t{.packed = view(tensors, "packed"),
                                   .codes = view(tensors, "codes"),
                                   .scales = view(tensors, "scales")};
  const nb::gil_scoped_release released;
  unpack_nvfp4_weight(t, to_layout(swizzled), to_stream(stream));
}

}  // namespace

void bind_nvfp4(nb::module_& m) {
  bind_call<QuantizeNvfp4Call>(m, "QuantizeNvfp4Call", make_quantize_call, nb::arg("swizzled"),
                               nb::arg("decode"));
  m.def("dequantize_nvfp4", &py_dequantize, nb::arg("tensors"), nb::kw_only(), nb::arg("swizzled"),
        nb::arg("decode").none(), nb::arg("stream"));
  m.def("swizzle_scales", &py_swizzle, nb::arg("linear"), nb::arg("swizzled"), nb::arg("stream"));
  m.def("unswizzle_scales", &py_unswizzle, nb::arg("swizzled"), nb::arg("linear"),
        nb::arg("stream"));
  m.def("prepack_nvfp4_weight", &py_prepack, nb::arg("tensors"), nb::kw_only(), nb::arg("swizzled"),
        nb::arg("stream"));
  m.def("unpack_nvfp4_weight", &py_unpack, nb::arg("tensors"), nb::kw_only(), nb::arg("swizzled"),
        nb::arg("stream"));
  m.def("packed_nvfp4_weight_shape", &packed_nvfp4_weight_shape, nb::arg("rows"),
        nb::arg("columns"));
  m.attr("nvfp4_weight_layout") = kNvfp4WeightLayout;
}

}  // namespace tilewright
