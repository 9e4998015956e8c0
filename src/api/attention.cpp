// An attention call: checked, its kernel selected and launched.
#include "tilewright/attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "attention_checks.hpp"
#include "attention_params.hpp"
#include "cpu/cpu_attention.hpp"
#include "cuda/cuda_backend.hpp"
#include "kernel_selection.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

// A window's side as kernels take it.
int limit_of(std::optional<std::int64_t> side) {
  return static_cast<int>(std::min<std::int64_t>(side.value_or(kNoLimit), kNoLimit));
}

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
          .window =
              limit_of(options.window.left) < kNoLimit || limit_of(options.window.right) < kNoLimit,
          .softcap = options.softcap > 0,
          .sinks = t.sinks.has_value(),
          .packed = t.cu_seqlens_q || t.cu_seqlens_k || t.seqused_k,
          .packed_queries = t.cu_seqlens_q.has_value(),
          .packed_keys = t.cu_seqlens_k.has_value(),
          .unnormalized = t.row_max.has_value(),
          .batch_invariant = options.batch_invariant};
}

const KernelInfo& select_kernel(const AttentionTensors& t, const AttentionOptions& options) {
  const AttentionProblem problem = problem_of(t, options);
  if (options.kernel == "auto") {
    return fastest_kernel("attention", problem, t.q.device);
  }
  static const std::string kRows = ", or a row of flash's table, " +
                                   std::string(flash_rows().front().name) + " to " +
                                   std::string(flash_rows().back().name);
  return checked_kernel(named_kernel("attention", options.kernel, kRows), problem, t.q.device, "q");
}

const KernelInfo& check_and_select(const AttentionTensors& t, const AttentionOptions& options) {
  check_arguments(t, options);
  const KernelInfo& kernel = select_kernel(t, options);
  check_alignment(t, kernel);
  return kernel;
}

// Strides of a tensor's outer dimensions, the batch (where it has one) in front. Those that are
// never stepped over become 0, whatever the caller left there.
OuterStrides outer_strides(const ConstTensorView& t, int seq, int head) {
  const auto stride = [&](int i) { return t.shape[i] > 1 ? t.stride[i] : 0; };
  const bool has_batch = std::min(seq, head) == 1;
  return {.batch = has_batch ? stride(0) : 0, .seq = stride(seq), .head = stride(head)};
}

// ([batch,] seqlen, heads, head_dim)
OuterStrides row_strides(const ConstTensorView& t) {
  return outer_strides(t, t.rank - 3, t.rank - 2);
}

// ([batch,] heads, seqlen)
OuterStrides statistic_strides(const ConstTensorView& t) {
  return outer_strides(t, t.rank - 1, t.rank - 2);
}

template <typename T, typename View>
T* data_of(const std::optional<View>& tensor) {
  return tensor ? static_cast<T*>(tensor->data) : nullptr;
}

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
  params.row_max = data_of<float>(t.row_max);
  params.row_sum = data_of<float>(t.row_sum);
  params.lse_stride = t.lse ? statistic_strides(*t.lse) : OuterStrides{};
  params.row_max_stride = t.row_max ? statistic_strides(*t.row_max) : OuterStrides{};
  params.row_sum_stride = t.row_sum ? statistic_strides(*t.row_sum) : OuterStrides{};
  params.sinks = data_of<const float>(t.sinks);
  params.sinks_stride = t.sinks ? t.sinks->stride[0] : 0;
  params.cu_seqlens_q = data_of<const int>(t.cu_seqlens_q);
  params.cu_seqlens_k = data_of<const int>(t.cu_seqlens_k);
  params.seqused_k = data_of<const int>(t.seqused_k);
}

void set_options(const AttentionOptions& options, AttentionParams& params) {
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.head_dim))));
  params.causal = options.causal;
  params.window_left = limit_of(options.window.left);
  params.window_right = limit_of(options.window.right);
  params.softcap = options.softcap;
  params.batch_invariant = options.batch_invariant;
}

AttentionParams make_params(const AttentionTensors& t, const AttentionOptions& options,
                            Workspace workspace) {
  AttentionParams params;
  params.workspace = workspace.data;
  params.multiprocessors = device_info(t.q.device).multiprocessors;
  params.dtype = t.q.dtype;
  params.batch = static_cast<int>(batch_size(t));
  params.q_len = static_cast<int>(seqlen_of(t.q));
  params.kv_len = static_cast<int>(seqlen_of(t.k));
  params.heads = static_cast<int>(heads_of(t.q));
  params.kv_heads = static_cast<int>(heads_of(t.k));
  params.head_dim = static_cast<int>(head_dim_of(t.q));
  params.value_dim = static_cast<int>(head_dim_of(t.v));
  set_tensors(t, params);
  set_options(options, params);
  return params;
}

std::size_t needed_bytes(const KernelInfo& kernel, const AttentionTensors& t,
                         const AttentionOptions& options) {
  return workspace_bytes(kernel, problem_of(t, options), device_info(t.q.device));
}

}  // namespace

std::size_t attention_workspace_bytes(const AttentionTensors& tensors,
                                      const AttentionOptions& options) {
  return needed_bytes(check_and_select(tensors, options), tensors, options);
}

void attention(const AttentionTensors& tensors, const AttentionOptions& options,
               Workspace workspace, Stream stream) {
  const KernelInfo& kernel = check_and_select(tensors, options);
  check_workspace(workspace, needed_bytes(kernel, tensors, options),
                  "kernel " + std::string(kernel.name));
  if (options.check_lengths || tensors.q.device.kind == DeviceKind::cpu) {
    check_length_values(tensors, stream);
  }
  const AttentionParams params = make_params(tensors, options, workspace);
  if (kernel.device == DeviceKind::cpu) {
    cpu::attention(params, stream);
  } else {
    cuda::run_attention(kernel.name, params, tensors.q.device.index, stream);
  }
}

}  // namespace tilewright
