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

// `dtype` is that of the result.
AttentionFp8Problem make_problem(std::string_view dtype, std::int64_t batch, std::int64_t q_len,
                                 std::int64_t kv_len, std::int64_t heads, std::int64_t kv_heads,
                                 std::int64_t head_dim, std::int64_t v_dim, bool causal,
                                 bool packed, bool v_transposed, int descale_rows) {
  return {{.dtype = parse_dtype(dtype),
           .batch = batch,
           .q_len = q_len,
           .kv_len = kv_len,
           .heads = heads,
           .kv_heads = kv_heads,
           .head_dim = head_dim,
           .value_dim = v_dim,
           .causal = causal,
           .packed = packed,
           .packed_queries = packed,
           .packed_keys = packed},
          v_transposed,
          descale_rows};
}

}  // namespace

void bind_attention_fp8(nb::module_& m) {
  bind_call<AttentionFp8Call>(m, "AttentionFp8Call", make_call, nb::arg("softmax_scale").none(),
                              nb::arg("causal"), nb::arg("window_size_left"),
                              nb::arg("window_size_right"), nb::arg("softcap"),
                              nb::arg("batch_invariant"), nb::arg("descale_rows"),
                              nb::arg("check_values"), nb::arg("kernel_name"));
  nb::class_<AttentionFp8Problem>(m, "AttentionFp8Problem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("batch"),
           nb::arg("q_len"), nb::arg("kv_len"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("v_dim"), nb::arg("causal"), nb::arg("packed"),
           nb::arg("v_transposed"), nb::arg("descale_rows"));
  bind_queries<AttentionFp8>(m);
}

}  // namespace tilewright
