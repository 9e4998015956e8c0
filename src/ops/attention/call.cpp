// A call of attention(): what it asks for, and how kernels receive it.
#include "ops/attention/call.hpp"

#include <cmath>

#include "ops/attention/checks.hpp"
#include "ops/attention/params.hpp"
#include "ops/attention_strides.hpp"
#include "ops/call.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {
namespace {

void set_tensors(const AttentionTensors& t, AttentionParams& params) {
  params.q = t.q.data;
  params.k = t.k.data;
  params.v = t.v.data;
  params.o = t.o.data;
  params.q_stride = row_strides(t.q);
  params.k_stride = row_strides(t.k);
  params.v_stride = row_strides(t.v);
  params.o_stride = row_strides(t.o);
  params.lse = data_of<float>(t.lse);
  params.statistics.max = data_of<float>(t.row_max);
  params.statistics.sum = data_of<float>(t.row_sum);
  params.lse_stride = statistic_strides(t.lse);
  params.statistics.max_stride = statistic_strides(t.row_max);
  params.statistics.sum_stride = statistic_strides(t.row_sum);
  params.sinks.logits = data_of<const float>(t.sinks);
  params.sinks.stride = t.sinks ? t.sinks->stride[0] : 0;
  params.packed_q.cu_seqlens = data_of<const int>(t.cu_seqlens_q);
  params.kv_lengths.cu_seqlens = data_of<const int>(t.cu_seqlens_k);
  params.kv_lengths.used = data_of<const int>(t.seqused_k);
}

void set_options(const AttentionOptions& options, AttentionParams& params) {
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.head_dim))));
  params.causal = options.causal;
  params.window = key_window_of(options.window);
  params.softcap = options.softcap;
}

}  // namespace

DeviceArgument device_of(const AttentionTensors& t) { return {"q", t.q.device}; }

AttentionProblem problem_of(const AttentionTensors& t, const AttentionOptions& options) {
  return {.dtype = t.q.dtype,
          .batch = batch_size(t),
          .q_len = seqlen_of(t.q),
          .kv_len = seqlen_of(t.k),
          .heads = heads_of(t.q),
          .kv_heads = heads_of(t.k),
          .head_dim = head_dim_of(t.q),
          .value_dim = head_dim_of(t.v),
          .causal = options.causal,
          .window = is_limited(options.window),
          .softcap = options.softcap > 0,
          .sinks = t.sinks.has_value(),
          .packed = t.cu_seqlens_q || t.cu_seqlens_k || t.seqused_k,
          .packed_queries = t.cu_seqlens_q.has_value(),
          .packed_keys = t.cu_seqlens_k.has_value(),
          .unnormalized = t.row_max.has_value(),
          .batch_invariant = options.batch_invariant};
}

AttentionParams params_of(const AttentionTensors& t, const AttentionOptions& options,
                          const AttentionProblem& problem) {
  AttentionParams params;
  params.multiprocessors = device_info(t.q.device).multiprocessors;
  params.dtype = problem.dtype;
  params.batch = static_cast<int>(problem.batch);
  params.q_len = static_cast<int>(problem.q_len);
  params.kv_len = static_cast<int>(problem.kv_len);
  params.heads = static_cast<int>(problem.heads);
  params.kv_heads = static_cast<int>(problem.kv_heads);
  params.head_dim = static_cast<int>(problem.head_dim);
  params.value_dim = static_cast<int>(problem.value_dim);
  set_tensors(t, params);
  set_options(options, params);
  return params;
}

std::size_t attention_workspace_bytes(const AttentionTensors& tensors,
                                      const AttentionOptions& options) {
  return prepare<Attention>(tensors, options).workspace_bytes();
}

void attention(const AttentionTensors& tensors, const AttentionOptions& options,
               Workspace workspace, Stream stream) {
  Call<Attention> call = prepare<Attention>(tensors, options);
  if (options.check_lengths || tensors.q.device.kind == DeviceKind::cpu) {
    check_length_values(tensors, stream);
  }
  call.launch(workspace, stream);
}

}  // namespace tilewright
