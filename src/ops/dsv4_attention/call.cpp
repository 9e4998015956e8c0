// A call of dsv4_attention(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include <cmath>

#include "ops/attention_strides.hpp"
#include "ops/dsv4_attention/checks.hpp"
#include "ops/dsv4_attention/params.hpp"
#include "ops/dsv4_attention/strides.hpp"
#include "ops/kv_rows/checks.hpp"
#include "tilewright/dsv4_attention.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright {
namespace {

using Tensors = Dsv4AttentionTensors;
using Options = Dsv4AttentionOptions;
using Problem = Dsv4AttentionProblem;
using Params = Dsv4AttentionParams;

TokenStrides strides_of(const std::optional<ConstTensorView>& tensor, bool is_packed) {
  return tensor ? token_strides(*tensor, is_packed) : TokenStrides{};
}

Dsv4ScopeProblem problem_of(const std::optional<Dsv4Scope>& scope) {
  if (!scope) {
    return {};
  }
  using Keys = Dsv4ScopeProblem::Keys;
  const KvRowsLayout layout = kv_rows_layout_of(scope->rows);
  return {.keys = scope->indices ? Keys::list : Keys::range,
          .format = layout.format,
          .pages = layout.pages,
          .page_size = layout.page_size,
          .most_keys = most_keys_of(*scope)};
}

Dsv4ScopeParams params_of(const std::optional<Dsv4Scope>& scope, bool is_packed) {
  if (!scope) {
    return {};
  }
  using Keys = Dsv4ScopeParams::Keys;
  const KvRowsLayout layout = kv_rows_layout_of(scope->rows);
  Dsv4ScopeParams params;
  params.rows = scope->rows.data;
  params.format = layout.format;
  params.page_bytes = layout.page_bytes;
  params.row_bytes = layout.row_bytes;
  params.pages = layout.pages;
  params.page_size = layout.page_size;
  params.keys = scope->indices ? Keys::list : Keys::range;
  params.range_end = data_of<const int>(scope->range_end);
  params.range_begin = data_of<const int>(scope->range_begin);
  params.end_stride = strides_of(scope->range_end, is_packed);
  params.begin_stride = strides_of(scope->range_begin, is_packed);
  params.block_table = data_of<const int>(scope->block_table);
  params.table_stride = scope->block_table ? stride_of(*scope->block_table, 0) : 0;
  params.max_pages = scope->block_table ? static_cast<int>(scope->block_table->shape[1]) : 1;
  params.ring = static_cast<int>(scope->ring);
  params.indices = data_of<const int>(scope->indices);
  params.indices_stride = strides_of(scope->indices, is_packed);
  params.list_lengths = data_of<const int>(scope->list_lengths);
  params.most_keys = static_cast<int>(most_keys_of(*scope));
  return params;
}

InverseRope inverse_rope_of(const Tensors& t) {
  if (!t.rotary_cos) {
    return {};
  }
  return {.cos = static_cast<const float*>(t.rotary_cos->data),
          .sin = static_cast<const float*>(t.rotary_sin->data),
          .cos_stride = stride_of(*t.rotary_cos, 0),
          .sin_stride = stride_of(*t.rotary_sin, 0),
          .max_positions = static_cast<int>(t.rotary_cos->shape[0]),
          .positions = static_cast<const std::int64_t*>(t.positions->data),
          .positions_stride = token_strides(*t.positions, t.cu_seqlens_q.has_value())};
}

void set_results(const Tensors& t, Params& params) {
  params.o = t.o.data;
  params.o_stride = row_strides(t.o);
  params.lse = data_of<float>(t.lse);
  params.lse_stride = statistic_strides(t.lse);
  params.statistics.max = data_of<float>(t.row_max);
  params.statistics.sum = data_of<float>(t.row_sum);
  params.statistics.max_stride = statistic_strides(t.row_max);
  params.statistics.sum_stride = statistic_strides(t.row_sum);
  if (t.o_scale) {
    params.o_scale = static_cast<float*>(t.o_scale->data);
    params.o_scale_stride = row_strides(*t.o_scale);
    params.o_scale_group_stride = stride_of(*t.o_scale, t.o_scale->rank - 1);
  }
}

}  // namespace

DeviceArgument device_of(const Tensors& t) { return {"q", t.q.device}; }

Problem problem_of(const Tensors& t, const Options&) {
  return {.dtype = t.q.dtype,
          .batch = batch_size(t),
          .q_len = seqlen_of(t.q),
          .heads = heads_of(t.q),
          .window = problem_of(t.window),
          .compressed = problem_of(t.compressed),
          .packed = t.cu_seqlens_q.has_value(),
          .fresh_rows = t.fresh_rows.has_value(),
          .sinks = t.sinks.has_value(),
          .unnormalized = t.row_max.has_value(),
          .inverse_rope = t.rotary_cos.has_value(),
          .e4m3_output = t.o_scale.has_value()};
}

Params params_of(const Tensors& t, const Options& options, const Problem& problem) {
  Params params;
  params.q = t.q.data;
  params.q_stride = row_strides(t.q);
  params.dtype = problem.dtype;
  params.batch = static_cast<int>(problem.batch);
  params.q_len = static_cast<int>(problem.q_len);
  params.heads = static_cast<int>(problem.heads);
  set_results(t, params);
  params.window = params_of(t.window, problem.packed);
  params.compressed = params_of(t.compressed, problem.packed);
  params.fresh.rows = data_of<const void>(t.fresh_rows);
  params.fresh.stride = strides_of(t.fresh_rows, problem.packed);
  params.rope = inverse_rope_of(t);
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDsv4HeadDim))));
  params.lse_counts_sink = options.lse_counts_sink;
  params.sinks.logits = data_of<const float>(t.sinks);
  params.sinks.stride = t.sinks ? t.sinks->stride[0] : 0;
  params.packed_q.cu_seqlens = data_of<const int>(t.cu_seqlens_q);
  params.multiprocessors = device_info(t.q.device).multiprocessors;
  return params;
}

std::size_t dsv4_attention_workspace_bytes(const Tensors& tensors, const Options& options) {
  return prepare<Dsv4Attention>(tensors, options).workspace_bytes();
}

void dsv4_attention(const Tensors& tensors, const Options& options, Workspace workspace,
                    Stream stream) {
  Call<Dsv4Attention> call = prepare<Dsv4Attention>(tensors, options);
  if (options.check_values || tensors.q.device.kind == DeviceKind::cpu) {
    check_values(tensors, stream);
  }
  call.launch(workspace, stream);
}

}  // namespace tilewright
