// The call of tilewright/merge_states.hpp for the Python layer.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright {
namespace {

void py_merge_states(const nb::dict& tensors, const std::string& kernel_name,
                     std::uintptr_t stream) {
  const MergeStatesTensors t{.o = view(tensors, "o"),
                             .out = view(tensors, "out"),
                             .lse = find(tensors, "lse"),
                             .row_max = find(tensors, "row_max"),
                             .row_sum = find(tensors, "row_sum"),
                             .lse_out = find(tensors, "lse_out"),
                             .row_max_out = find(tensors, "row_max_out"),
                             .row_sum_out = find(tensors, "row_sum_out"),
                             .sinks = find(tensors, "sinks")};
  const nb::gil_scoped_release released;
  merge_states(t, {.kernel = kernel_name}, to_stream(stream));
}

}  // namespace

void bind_merge_states(nb::module_& m) {
  m.def("merge_states", &py_merge_states, nb::arg("tensors"), nb::kw_only(), nb::arg("kernel_name"),
        nb::arg("stream"));
}

}  // namespace tilewright
