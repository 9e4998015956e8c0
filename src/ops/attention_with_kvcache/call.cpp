// A call of attention_with_kvcache(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include <cmath>

#include "ops/attention_strides.hpp"
#include "ops/attention_with_kvcache/checks.hpp"
#include "ops/attention_with_kvcache/params.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright {
namespace {

using Tensors = AttentionWithKvCacheTensors;
using Options = AttentionWithKvCacheOptions;
using Problem = AttentionWithKvCacheProblem;
using Params = AttentionWithKvCacheParams;

KvRows rows_of(const Tensors& t) {
  KvRows rows{.cache_seqlens = static_cast<const int*>(t.cache_seqlens.data)};
  if (t.block_table) {
    rows.block_table = static_cast<const int*>(t.block_table->data);
    rows.table_stride = stride_of(*t.block_table, 0);
    rows.max_pages = static_cast<int>(t.block_table->shape[1]);
    rows.page_size = static_cast<int>(t.k_cache.shape[1]);
  }
  rows.cache_rows = static_cast<int>(t.k_cache.shape[0]);
  rows.capacity = static_cast<int>(capacity_of(t));
  rows.cache_batch_idx = data_of<const int>(t.cache_batch_idx);
  rows.leftpad = data_of<const int>(t.leftpad_k);
  return rows;
}

SharedPrefixes prefixes_of(const Tensors& t) {
  if (!t.prefix_groups) {
    return {};
  }
  return {.groups = static_cast<const int*>(t.prefix_groups->data),
          .seqlens = static_cast<const int*>(t.prefix_seqlens->data),
          .count = static_cast<int>(t.prefix_seqlens->shape[0])};
}

NewRows new_rows_of(const Tensors& t) {
  if (!t.k) {
    return {};
  }
  return {.k = t.k->data,
          .v = t.v->data,
          .len = static_cast<int>(seqlen_of(*t.k)),
          .k_stride = row_strides(*t.k),
          .v_stride = row_strides(*t.v)};
}

TreeMask tree_mask_of(const Tensors& t) {
  if (!t.tree_mask) {
    return {};
  }
  return {.bits = static_cast<const std::int64_t*>(t.tree_mask->data),
          .batch_stride = t.tree_mask->rank == 2 ? stride_of(*t.tree_mask, 0) : 0,
          .seq_stride = stride_of(*t.tree_mask, t.tree_mask->rank - 1)};
}

Descales descales_of(const std::optional<ConstTensorView>& descale) {
  if (!descale) {
    return {};
  }
  const auto* const data = static_cast<const float*>(descale->data);
  switch (descale->rank) {
    case 1:
      return {.data = data, .per = Descales::Per::tensor, .stride = {}};
    case 2:
      return {
          .data = data,
          .per = Descales::Per::sequence,
          .stride = {.batch = stride_of(*descale, 0), .seq = 0, .head = stride_of(*descale, 1)}};
    default:
      return {.data = data, .per = Descales::Per::row, .stride = outer_strides(*descale, 1, 2)};
  }
}

void set_tensors(const Tensors& t, Params& params) {
  params.q = t.q.data;
  params.k_cache = t.k_cache.data;
  params.v_cache = t.v_cache.data;
  params.o = t.o.data;
  params.q_stride = row_strides(t.q);
  params.k_stride = row_strides(t.k_cache);
  params.v_stride = row_strides(t.v_cache);
  params.o_stride = row_strides(t.o);
  params.lse = data_of<float>(t.lse);
  params.statistics.max = data_of<float>(t.row_max);
  params.statistics.sum = data_of<float>(t.row_sum);
  params.lse_stride = statistic_strides(t.lse);
  params.statistics.max_stride = statistic_strides(t.row_max);
  params.statistics.sum_stride = statistic_strides(t.row_sum);
  params.rows = rows_of(t);
  params.prefixes = prefixes_of(t);
  params.added = new_rows_of(t);
  params.tree = tree_mask_of(t);
  params.q_descale = descales_of(t.q_descale);
  params.k_descale = descales_of(t.k_descale);
  params.v_descale = descales_of(t.v_descale);
  params.sinks.logits = data_of<const float>(t.sinks);
  params.sinks.stride = t.sinks ? t.sinks->stride[0] : 0;
  params.packed_q.cu_seqlens = data_of<const int>(t.cu_seqlens_q);
}

// Has a descale of the caches one number for each of their rows?
bool has_rows(const std::optional<ConstTensorView>& descale) {
  return descale && descale->rank == 3;
}

}  // namespace

DeviceArgument device_of(const Tensors& t) { return {"q", t.q.device}; }

Problem problem_of(const Tensors& t, const Options& options) {
  return {.dtype = t.q.dtype,
          .cache_dtype = t.k_cache.dtype,
          .batch = batch_size(t),
          .q_len = seqlen_of(t.q),
          .cache_rows = t.k_cache.shape[0],
          .page_size = t.block_table ? t.k_cache.shape[1] : 0,
          .capacity = capacity_of(t),
          .heads = heads_of(t.q),
          .kv_heads = heads_of(t.k_cache),
          .head_dim = head_dim_of(t.q),
          .value_dim = head_dim_of(t.v_cache),
          .causal = options.causal,
          .window = is_limited(options.window),
          .softcap = options.softcap > 0,
          .sinks = t.sinks.has_value(),
          .packed = t.cu_seqlens_q.has_value(),
          .unnormalized = t.row_max.has_value(),
          .left_padding = t.leftpad_k.has_value(),
          .shared_prefix = t.prefix_groups.has_value(),
          .new_rows = t.k.has_value(),
          .tree_mask = t.tree_mask.has_value(),
          .row_descales = has_rows(t.k_descale) || has_rows(t.v_descale),
          .batch_invariant = options.batch_invariant,
          .max_seqlen_q = options.max_seqlen_q,
          .max_seqlen_k = options.max_seqlen_k,
          .prefix_groups = t.prefix_seqlens ? t.prefix_seqlens->shape[0] : 1,
          .window_left = options.window.left.value_or(-1)};
}

Params params_of(const Tensors& t, const Options& options, const Problem& problem) {
  Params params;
  params.multiprocessors = device_info(t.q.device).multiprocessors;
  params.dtype = problem.dtype;
  params.cache_dtype = problem.cache_dtype;
  params.batch = static_cast<int>(problem.batch);
  params.q_len = static_cast<int>(problem.q_len);
  params.heads = static_cast<int>(problem.heads);
  params.kv_heads = static_cast<int>(problem.kv_heads);
  params.head_dim = static_cast<int>(problem.head_dim);
  params.value_dim = static_cast<int>(problem.value_dim);
  set_tensors(t, params);
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.head_dim))));
  params.causal = options.causal;
  params.batch_invariant = options.batch_invariant;
  params.window = key_window_of(options.window);
  params.softcap = options.softcap;
  return params;
}

std::size_t attention_with_kvcache_workspace_bytes(const Tensors& tensors, const Options& options) {
  return prepare<AttentionWithKvCache>(tensors, options).workspace_bytes();
}

void attention_with_kvcache(const Tensors& tensors, const Options& options, Workspace workspace,
                            Stream stream) {
  Call<AttentionWithKvCache> call = prepare<AttentionWithKvCache>(tensors, options);
  if (options.check_values || tensors.q.device.kind == DeviceKind::cpu) {
    check_values(tensors, options, stream);
  }
  call.launch(workspace, stream);
}

}  // namespace tilewright
