// The calls of tilewright/kv_rows.hpp for the Python layer.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright {
namespace {

void py_quantize(const nb::dict& tensors, bool check_values, const std::string& kernel_name,
                 std::uintptr_t stream) {
  const QuantizeKvRowsTensors t{.x = view(tensors, "x"),
                                .rows = view(tensors, "rows"),
                                .slot_mapping = view(tensors, "slot_mapping")};
  const nb::gil_scoped_release released;
  quantize_kv_rows(t, {.check_values = check_values, .kernel = kernel_name}, to_stream(stream));
}

void py_dequantize(const nb::dict& tensors, bool check_values, const std::string& kernel_name,
                   std::uintptr_t stream) {
  const DequantizeKvRowsTensors t{.rows = view(tensors, "rows"),
                                  .out = view(tensors, "out"),
                                  .slot_mapping = view(tensors, "slot_mapping")};
  const nb::gil_scoped_release released;
  dequantize_kv_rows(t, {.check_values = check_values, .kernel = kernel_name}, to_stream(stream));
}

}  // namespace

void bind_kv_rows(nb::module_& m) {
  m.def("quantize_kv_rows", &py_quantize, nb::arg("tensors"), nb::kw_only(),
        nb::arg("check_values"), nb::arg("kernel_name"), nb::arg("stream"));
  m.def("dequantize_kv_rows", &py_dequantize, nb::arg("tensors"), nb::kw_only(),
        nb::arg("check_values"), nb::arg("kernel_name"), nb::arg("stream"));
}

}  // namespace tilewright
