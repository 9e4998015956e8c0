// The calls of tilewright/attention_fp8.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_options.hpp"
#include "kernel_queries.hpp"
#include "native_call.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright {
namespace {

using AttentionFp8Call = NativeCall<AttentionFp8, attention_fp8_workspace_bytes, attention_fp8>;

AttentionFp8Call make_call(const nb::dict& tensors, std::optional<double> softmax_scale,
                           bool causal, std::int64_t window_size_left,
                           std::int64_t window_size_right, double softcap, bool batch_invariant,
                           int descale_rows, bool check_values, const std::string& kernel_name) {
  return {tensors,
          {.q = view(tensors, "q"),
           .k = view(tensors, "k"),
           .o = view(tensors, "out"),
           .v = find(tensors, "v"),
           .v_transposed = find(tensors, "v_transposed"),
           .q_descale = find(tensors, "q_descale"),
           .k_descale = find(tensors, "k_descale"),
           .v_descale = find(tensors, "v_descale"),
           .lse = find(tensors, "lse"),
           .sinks = find(tensors, "sinks"),
           .cu_seqlens_q = find(tensors, "cu_seqlens_q"),
           .cu_seqlens_k = find(tensors, "cu_seqlens_k"),
           .seqused_k = find(tensors, "seqused_k"),
           .row_max = find(tensors, "row_max"),
           .row_sum = find(tensors, "row_sum")},
          {.causal = causal,
           .window = to_window(window_size_left, window_size_right),
           .scale = to_scale(softmax_scale),
           .softcap = static_cast<float>(softcap),
           .batch_invariant = batch_invariant,
           .descale_rows = descale_rows,
           .check_values = check_values,
           .kernel = kernel_name}};
}

// The dtype of `sizes` is that of the result.
AttentionFp8Problem make_problem(const AttentionProblem& sizes, bool v_transposed,
                                 int descale_rows) {
  return {sizes, v_transposed, descale_rows};
}

}  // namespace

void bind_attention_fp8(nb::module_& m) {
  bind_call<AttentionFp8Call>(m, "AttentionFp8Call", make_call, nb::arg("softmax_scale").none(),
                              nb::arg("causal"), nb::arg("window_size_left"),
                              nb::arg("window_size_right"), nb::arg("softcap"),
                              nb::arg("batch_invariant"), nb::arg("descale_rows"),
                              nb::arg("check_values"), nb::arg("kernel_name"));
  nb::class_<AttentionFp8Problem>(m, "AttentionFp8Problem")
      .def(nb::new_(&make_problem), nb::arg("sizes"), nb::kw_only(), nb::arg("v_transposed"),
           nb::arg("descale_rows"));
  bind_queries<AttentionFp8>(m);
}

}  // namespace tilewright
