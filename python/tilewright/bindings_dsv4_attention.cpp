// The calls of tilewright/dsv4_attention.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_options.hpp"
#include "kernel_queries.hpp"
#include "native_call.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright {
namespace {

using Dsv4Call = NativeCall<Dsv4Attention, dsv4_attention_workspace_bytes, dsv4_attention>;

// The scope whose tensors have names that begin with `scope` and a dot.
std::optional<Dsv4Scope> find_scope(const nb::dict& tensors, const std::string& scope,
                                    std::int64_t ring, std::int64_t most_keys) {
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
                   .most_keys = most_keys,
                   .indices = find_in_scope("indices"),
                   .list_lengths = find_in_scope("list_lengths")};
}

Dsv4Call make_call(const nb::dict& tensors, std::int64_t window_ring, std::int64_t window_most_keys,
                   std::int64_t compressed_ring, std::int64_t compressed_most_keys,
                   std::optional<double> softmax_scale, bool lse_counts_sink, bool check_values,
                   const std::string& kernel_name) {
  return {tensors,
          {.q = view(tensors, "q"),
           .o = view(tensors, "out"),
           .window = find_scope(tensors, "window", window_ring, window_most_keys),
           .compressed = find_scope(tensors, "compressed", compressed_ring, compressed_most_keys),
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

KvRowFormat parse_format(std::string_view text) {
  for (const auto format :
       {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3, KvRowFormat::e2m1}) {
    if (text == name(format)) {
      return format;
    }
  }
  fail("rows", "is '" + std::string(text) + "', must be bf16, e4m3_bf16, e4m3 or e2m1");
}

Dsv4ScopeProblem make_scope_problem(bool is_list, std::string_view rows, std::int64_t pages,
                                    std::int64_t page_size, std::int64_t most_keys) {
  using Keys = Dsv4ScopeProblem::Keys;
  return {.keys = is_list ? Keys::list : Keys::range,
          .format = parse_format(rows),
          .pages = pages,
          .page_size = page_size,
          .most_keys = most_keys};
}

Dsv4AttentionProblem make_problem(std::string_view dtype, std::int64_t batch, std::int64_t q_len,
                                  std::int64_t heads, const Dsv4ScopeProblem* window,
                                  const Dsv4ScopeProblem* compressed, bool sinks,
                                  bool inverse_rope) {
  const auto of = [](const Dsv4ScopeProblem* scope) {
    return scope != nullptr ? *scope : Dsv4ScopeProblem();
  };
  return {.dtype = parse_dtype(dtype),
          .batch = batch,
          .q_len = q_len,
          .heads = heads,
          .window = of(window),
          .compressed = of(compressed),
          .sinks = sinks,
          .inverse_rope = inverse_rope};
}

}  // namespace

void bind_dsv4_attention(nb::module_& m) {
  bind_call<Dsv4Call>(m, "Dsv4AttentionCall", make_call, nb::arg("window_ring"),
                      nb::arg("window_most_keys"), nb::arg("compressed_ring"),
                      nb::arg("compressed_most_keys"), nb::arg("softmax_scale").none(),
                      nb::arg("lse_counts_sink"), nb::arg("check_values"), nb::arg("kernel_name"));
  nb::class_<Dsv4ScopeProblem>(m, "Dsv4ScopeProblem")
      .def(nb::new_(&make_scope_problem), nb::kw_only(), nb::arg("is_list"), nb::arg("rows"),
           nb::arg("pages"), nb::arg("page_size"), nb::arg("most_keys"));
  nb::class_<Dsv4AttentionProblem>(m, "Dsv4AttentionProblem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("batch"),
           nb::arg("q_len"), nb::arg("heads"), nb::arg("window").none(),
           nb::arg("compressed").none(), nb::arg("sinks"), nb::arg("inverse_rope"));
  bind_queries<Dsv4Attention>(m);
}

}  // namespace tilewright
