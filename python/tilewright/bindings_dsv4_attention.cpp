// The calls of tilewright/dsv4_attention.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_options.hpp"
#include "native_call.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright {
namespace {

using Dsv4Call = NativeCall<Dsv4Attention, dsv4_attention_workspace_bytes, dsv4_attention>;

// The scope whose tensors have names that begin with `scope` and a dot.
std::optional<Dsv4Scope> find_scope(const nb::dict& tensors, const std::string& scope,
                                    std::int64_t ring) {
  const auto find_in_scope = [&](const char* argument) {
    return find(tensors, (scope + "." + argument).c_str());
  };
  const auto rows = find_in_scope("rows");
  if (!rows) {
    return std::nullopt;
  }
  return Dsv4Scope{.rows = *rows,
                   .range_end = find_in_scope("range_end"),
                   .range_begin = find_in_scope("range_begin"),
                   .block_table = find_in_scope("block_table"),
                   .ring = ring,
                   .indices = find_in_scope("indices"),
                   .list_lengths = find_in_scope("list_lengths")};
}

Dsv4Call make_call(const nb::dict& tensors, std::int64_t window_ring, std::int64_t compressed_ring,
                   std::optional<double> softmax_scale, bool lse_counts_sink, bool check_values,
                   const std::string& kernel_name) {
  return {tensors,
          {.q = view(tensors, "q"),
           .o = view(tensors, "out"),
           .window = find_scope(tensors, "window", window_ring),
           .compressed = find_scope(tensors, "compressed", compressed_ring),
           .fresh_rows = find(tensors, "fresh_rows"),
           .sinks = find(tensors, "sinks"),
           .lse = find(tensors, "lse"),
           .row_max = find(tensors, "row_max"),
           .row_sum = find(tensors, "row_sum"),
           .rotary_cos = find(tensors, "rotary_cos"),
           .rotary_sin = find(tensors, "rotary_sin"),
           .positions = find(tensors, "positions"),
           .o_scale = find(tensors, "out_scale"),
           .cu_seqlens_q = find(tensors, "cu_seqlens_q")},
          {.scale = to_scale(softmax_scale),
           .lse_counts_sink = lse_counts_sink,
           .check_values = check_values,
           .kernel = kernel_name}};
}

}  // namespace

void bind_dsv4_attention(nb::module_& m) {
  bind_call<Dsv4Call>(m, "Dsv4AttentionCall", make_call, nb::arg("window_ring"),
                      nb::arg("compressed_ring"), nb::arg("softmax_scale").none(),
                      nb::arg("lse_counts_sink"), nb::arg("check_values"), nb::arg("kernel_name"));
}

}  // namespace tilewright
