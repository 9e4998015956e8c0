// The call of tilewright/rotate_quantize.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright {
namespace {

void py_rotate_quantize(const nb::dict& tensors, int descale_rows,
                        std::optional<std::uint64_t> seed, bool interleaved, bool check_values,
                        const std::string& kernel_name, std::uintptr_t stream) {
  const RotateQuantizeTensors t{.x = view(tensors, "x"),
                                .out = find(tensors, "out"),
                                .out_transposed = find(tensors, "out_transposed"),
                                .descale = find(tensors, "descale"),
                                .fixed_descale = find(tensors, "fixed_descale"),
                                .cu_seqlens = find(tensors, "cu_seqlens"),
                                .rotary_cos = find(tensors, "rotary_cos"),
                                .rotary_sin = find(tensors, "rotary_sin"),
                                .positions = find(tensors, "positions")};
  const nb::gil_scoped_release released;
  rotate_quantize(t,
                  {.descale_rows = descale_rows,
                   .seed = seed,
                   .interleaved = interleaved,
                   .check_values = check_values,
                   .kernel = kernel_name},
                  to_stream(stream));
}

}  // namespace

void bind_rotate_quantize(nb::module_& m) {
  m.def("rotate_quantize", &py_rotate_quantize, nb::arg("tensors"), nb::kw_only(),
        nb::arg("descale_rows"), nb::arg("seed").none(), nb::arg("interleaved"),
        nb::arg("check_values"), nb::arg("kernel_name"), nb::arg("stream"));
  m.attr("fp8_format_version") = kFp8FormatVersion;
}

}  // namespace tilewright
