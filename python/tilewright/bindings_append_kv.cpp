// The call of tilewright/append_kv.hpp for the Python layer.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright {
namespace {

void py_append_kv(const nb::dict& tensors, bool interleaved, bool check_values,
                  const std::string& kernel_name, std::uintptr_t stream) {
  const AppendKvTensors t{.k = view(tensors, "k"),
                          .v = view(tensors, "v"),
                          .k_cache = view(tensors, "k_cache"),
                          .v_cache = view(tensors, "v_cache"),
                          .slot_mapping = find(tensors, "slot_mapping"),
                          .cache_seqlens = find(tensors, "cache_seqlens"),
                          .cu_seqlens_new = find(tensors, "cu_seqlens_new"),
                          .block_table = find(tensors, "block_table"),
                          .cache_batch_idx = find(tensors, "cache_batch_idx"),
                          .rotary_cos = find(tensors, "rotary_cos"),
                          .rotary_sin = find(tensors, "rotary_sin"),
                          .positions = find(tensors, "positions"),
                          .q = find(tensors, "q"),
                          .q_out = find(tensors, "q_out"),
                          .k_descale = find(tensors, "k_descale"),
                          .v_descale = find(tensors, "v_descale"),
                          .computed_k_descale = find(tensors, "computed_k_descale"),
                          .computed_v_descale = find(tensors, "computed_v_descale")};
  const nb::gil_scoped_release released;
  append_kv(t, {.interleaved = interleaved, .check_values = check_values, .kernel = kernel_name},
            to_stream(stream));
}

}  // namespace

void bind_append_kv(nb::module_& m) {
  m.def("append_kv", &py_append_kv, nb::arg("tensors"), nb::kw_only(), nb::arg("interleaved"),
        nb::arg("check_values"), nb::arg("kernel_name"), nb::arg("stream"));
}

}  // namespace tilewright
