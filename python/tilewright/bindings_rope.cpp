// The calls of tilewright/rope.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/rope.hpp"

namespace tilewright {
namespace {

void py_rope(const nb::dict& tensors, bool interleaved, bool rotates_last, bool inverse,
             bool check_values, const std::string& kernel_name, std::uintptr_t stream) {
  const RopeTensors t{.x = view(tensors, "x"),
                      .out = view(tensors, "out"),
                      .rotary_cos = view(tensors, "rotary_cos"),
                      .rotary_sin = view(tensors, "rotary_sin"),
                      .positions = view(tensors, "positions")};
  const nb::gil_scoped_release released;
  rope(t,
       {.interleaved = interleaved,
        .rotates_last = rotates_last,
        .inverse = inverse,
        .check_values = check_values,
        .kernel = kernel_name},
       to_stream(stream));
}

// Without a factor there is no YaRN.
void py_rope_tables(const nb::dict& tensors, double theta, std::int64_t dims,
                    std::optional<double> yarn_factor, std::int64_t original_positions,
                    double beta_fast, double beta_slow) {
  RopeScaling scaling{.theta = theta, .dims = dims};
  if (yarn_factor) {
    scaling.yarn = RopeYarn{.factor = *yarn_factor,
                            .original_positions = original_positions,
                            .beta_fast = beta_fast,
                            .beta_slow = beta_slow};
  }
  const TensorView cos = view(tensors, "cos");
  const TensorView sin = view(tensors, "sin");
  const nb::gil_scoped_release released;
  rope_tables(scaling, cos, sin);
}

}  // namespace

void bind_rope(nb::module_& m) {
  m.def("rope", &py_rope, nb::arg("tensors"), nb::kw_only(), nb::arg("interleaved"),
        nb::arg("rotates_last"), nb::arg("inverse"), nb::arg("check_values"),
        nb::arg("kernel_name"), nb::arg("stream"));
  m.def("rope_tables", &py_rope_tables, nb::arg("tensors"), nb::kw_only(), nb::arg("theta"),
        nb::arg("dims"), nb::arg("yarn_factor").none(), nb::arg("original_positions"),
        nb::arg("beta_fast"), nb::arg("beta_slow"));
}

}  // namespace tilewright
