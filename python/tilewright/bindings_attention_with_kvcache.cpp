// The calls of tilewright/attention_with_kvcache.hpp for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_options.hpp"
#include "kernel_queries.hpp"
#include "native_call.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright {
namespace {

using KvCacheCall = NativeCall<AttentionWithKvCache, attention_with_kvcache_workspace_bytes,
                               attention_with_kvcache>;

KvCacheCall make_call(const nb::dict& tensors, std::optional<double> softmax_scale, bool causal,
                      std::int64_t window_size_left, std::int64_t window_size_right, double softcap,
                      bool batch_invariant, bool check_values, std::int64_t max_seqlen_q,
                      std::int64_t max_seqlen_k, const std::string& kernel_name) {
  return {tensors,
          {.q = view(tensors, "q"),
           .k_cache = view(tensors, "k_cache"),
           .v_cache = view(tensors, "v_cache"),
           .o = view(tensors, "out"),
           .cache_seqlens = view(tensors, "cache_seqlens"),
           .block_table = find(tensors, "block_table"),
           .cache_batch_idx = find(tensors, "cache_batch_idx"),
           .leftpad_k = find(tensors, "leftpad_k"),
           .prefix_groups = find(tensors, "prefix_groups"),
           .prefix_seqlens = find(tensors, "prefix_seqlens"),
           .cu_seqlens_q = find(tensors, "cu_seqlens_q"),
           .k = find(tensors, "k"),
           .v = find(tensors, "v"),
           .q_descale = find(tensors, "q_descale"),
           .k_descale = find(tensors, "k_descale"),
           .v_descale = find(tensors, "v_descale"),
           .tree_mask = find(tensors, "tree_mask"),
           .sinks = find(tensors, "sinks"),
           .lse = find(tensors, "lse"),
           .row_max = find(tensors, "row_max"),
           .row_sum = find(tensors, "row_sum")},
          {.causal = causal,
           .window = to_window(window_size_left, window_size_right),
           .scale = to_scale(softmax_scale),
           .softcap = static_cast<float>(softcap),
           .batch_invariant = batch_invariant,
           .check_values = check_values,
           .max_seqlen_q = max_seqlen_q,
           .max_seqlen_k = max_seqlen_k,
           .kernel = kernel_name}};
}

// A problem without features, besides a causal mask and packed queries.
AttentionWithKvCacheProblem make_problem(std::string_view dtype, std::string_view cache_dtype,
                                         std::int64_t batch, std::int64_t q_len,
                                         std::int64_t cache_rows, std::int64_t page_size,
                                         std::int64_t capacity, std::int64_t heads,
                                         std::int64_t kv_heads, std::int64_t head_dim,
                                         std::int64_t v_dim, bool causal, bool packed) {
  return {.dtype = parse_dtype(dtype),
          .cache_dtype = parse_dtype(cache_dtype),
          .batch = batch,
          .q_len = q_len,
          .cache_rows = cache_rows,
          .page_size = page_size,
          .capacity = capacity,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .value_dim = v_dim,
          .causal = causal,
          .packed = packed};
}

}  // namespace

void bind_attention_with_kvcache(nb::module_& m) {
  bind_call<KvCacheCall>(m, "AttentionWithKvCacheCall", make_call, nb::arg("softmax_scale").none(),
                         nb::arg("causal"), nb::arg("window_size_left"),
                         nb::arg("window_size_right"), nb::arg("softcap"),
                         nb::arg("batch_invariant"), nb::arg("check_values"),
                         nb::arg("max_seqlen_q"), nb::arg("max_seqlen_k"), nb::arg("kernel_name"));
  nb::class_<AttentionWithKvCacheProblem>(m, "AttentionWithKvCacheProblem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("cache_dtype"),
           nb::arg("batch"), nb::arg("q_len"), nb::arg("cache_rows"), nb::arg("page_size"),
           nb::arg("capacity"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("v_dim"), nb::arg("causal"), nb::arg("packed"));
  bind_queries<AttentionWithKvCache>(m);
}

}  // namespace tilewright
