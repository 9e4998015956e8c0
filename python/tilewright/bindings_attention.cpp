// The calls of tilewright/attention.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_options.hpp"
#include "kernel_queries.hpp"
#include "native_call.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {
namespace {

using AttentionCall = NativeCall<Attention, attention_workspace_bytes, attention>;

AttentionCall make_call(const nb::dict& tensors, std::optional<double> softmax_scale, bool causal,
                        std::int64_t window_size_left, std::int64_t window_size_right,
                        double softcap, bool batch_invariant, bool check_lengths,
                        const std::string& kernel_name) {
  return {tensors,
          {.q = view(tensors, "q"),
           .k = view(tensors, "k"),
           .v = view(tensors, "v"),
           .o = view(tensors, "out"),
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
           .check_lengths = check_lengths,
           .kernel = kernel_name}};
}

AttentionProblem make_problem(std::string_view dtype, std::int64_t batch, std::int64_t q_len,
                              std::int64_t kv_len, std::int64_t heads, std::int64_t kv_heads,
                              std::int64_t head_dim, std::int64_t v_dim, bool causal, bool packed) {
  return {.dtype = parse_dtype(dtype),
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
          .packed_keys = packed};
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_call<AttentionCall>(
      m, "AttentionCall", make_call, nb::arg("softmax_scale").none(), nb::arg("causal"),
      nb::arg("window_size_left"), nb::arg("window_size_right"), nb::arg("softcap"),
      nb::arg("batch_invariant"), nb::arg("check_lengths"), nb::arg("kernel_name"));
  nb::class_<AttentionProblem>(m, "AttentionProblem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("batch"),
           nb::arg("q_len"), nb::arg("kv_len"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("v_dim"), nb::arg("causal"), nb::arg("packed"));
  bind_queries<Attention>(m);
}

}  // namespace tilewright
