// Checks an attention call, selects its kernel and launches it.
#include "tilewright/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "attention_params.hpp"
#include "cpu/cpu_attention.hpp"
#include "cuda/cuda_backend.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

constexpr std::size_t kWorkspaceAlignment_bytes = 256;

[[noreturn]] void fail(const char* argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

std::string shape_text(const ConstTensorView& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.rank; ++i) {
    text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  }
  return text + ")";
}

// What holds for every tensor alone: a pointer, the rank, sizes of at least 1.
void check_tensor(const char* argument, const ConstTensorView& tensor, int rank) {
  constexpr std::array kDims = {"", " (heads)", "", " (batch, heads, seqlen)",
                                " (batch, seqlen, heads, head_dim)"};
  if (tensor.rank != rank) {
    fail(argument, "has rank " + std::to_string(tensor.rank) + ", must have rank " +
                       std::to_string(rank) + kDims[static_cast<std::size_t>(rank)]);
  }
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] < 1 || tensor.shape[i] > std::numeric_limits<int>::max() / 2) {
      fail(argument, "has shape " + shape_text(tensor) +
                         ", every size must be at least 1 and less than 2^30");
    }
  }
  if (tensor.data == nullptr) {
    fail(argument, "has a null data pointer, must point to memory");
  }
}

void check_head_dim_is_contiguous(const char* argument, const ConstTensorView& tensor) {
  if (tensor.shape[3] > 1 && tensor.stride[3] != 1) {
    fail(argument, "has stride " + std::to_string(tensor.stride[3]) +
                       " in its last dimension, head_dim must be contiguous (stride 1)");
  }
}

void check_same(const char* argument, const char* what, std::int64_t value, const std::string& of,
                std::int64_t expected) {
  if (value != expected) {
    fail(argument, std::string(what) + " is " + std::to_string(value) + ", must equal " + of + " " +
                       std::to_string(expected));
  }
}

// No two elements of an output may share an address: sorted by stride, every dimension must step
// over all that lies below it.
void check_no_overlap(const char* argument, const TensorView& tensor) {
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dims{};  // |stride|, size
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1) {
      dims[i] = {std::abs(tensor.stride[i]), tensor.shape[i]};
    }
  }
  std::ranges::sort(dims);
  std::int64_t extent = 0;
  for (const auto& [stride, size] : dims) {
    if (size > 1 && stride <= extent) {
      fail(argument, "has a stride of " + std::to_string(stride) + " over a span of " +
                         std::to_string(extent + 1) +
                         " elements, an output's elements must not overlap");
    }
    extent += stride * (size - 1);
  }
}

void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            const ConstTensorView& q) {
  if (tensor.dtype != dtype) {
    fail(argument, "has dtype " + std::string(name(tensor.dtype)) + ", must be " +
                       std::string(name(dtype)) + (dtype == q.dtype ? ", the dtype of q" : ""));
  }
  if (tensor.device != q.device) {
    fail(argument, "is on " + name(tensor.device) + ", must be on " + name(q.device) + " like q");
  }
}

void check_shapes(const AttentionTensors& t) {
  check_same("k", "batch", t.k.shape[0], "q's", t.q.shape[0]);
  check_same("k", "head_dim", t.k.shape[3], "q's", t.q.shape[3]);
  if (t.q.shape[2] % t.k.shape[2] != 0) {
    fail("k", "has " + std::to_string(t.k.shape[2]) + " heads, must divide q's " +
                  std::to_string(t.q.shape[2]) + " heads");
  }
  constexpr std::array kDims = {"batch", "seqlen", "heads", "head_dim"};
  for (int i = 0; i < 4; ++i) {
    check_same("v", kDims[i], t.v.shape[i], "k's", t.k.shape[i]);
    check_same("o", kDims[i], t.o.shape[i], "q's", t.q.shape[i]);
  }
  if (t.lse) {
    check_same("lse", "batch", t.lse->shape[0], "q's", t.q.shape[0]);
    check_same("lse", "heads", t.lse->shape[1], "q's", t.q.shape[2]);
    check_same("lse", "seqlen", t.lse->shape[2], "q's", t.q.shape[1]);
  }
}

void check_at_least_0(const char* argument, const char* what, double value) {
  if (!(value >= 0 && std::isfinite(value))) {
    fail(argument,
         what + std::string("is ") + std::to_string(value) + ", must be finite and at least 0");
  }
}

void check_options(const AttentionOptions& options) {
  check_at_least_0("scale", "", options.scale.value_or(0.0f));
  check_at_least_0("softcap", "", options.softcap);
  check_at_least_0("window", "left ", static_cast<double>(options.window.left.value_or(0)));
  check_at_least_0("window", "right ", static_cast<double>(options.window.right.value_or(0)));
}

// Everything that can be said of a call before a kernel is chosen.
void check_arguments(const AttentionTensors& t, const AttentionOptions& options) {
  const std::array<std::pair<const char*, ConstTensorView>, 4> tensors{
      {{"q", t.q}, {"k", t.k}, {"v", t.v}, {"o", t.o}}};
  for (const auto& [argument, tensor] : tensors) {
    check_tensor(argument, tensor, 4);
    check_dtype_and_device(argument, tensor, t.q.dtype, t.q);
    check_head_dim_is_contiguous(argument, tensor);
  }
  if (t.lse) {
    check_tensor("lse", *t.lse, 3);
    check_dtype_and_device("lse", *t.lse, DType::fp32, t.q);
    check_no_overlap("lse", *t.lse);
  }
  check_shapes(t);
  check_no_overlap("o", t.o);
  if (t.sinks) {
    check_tensor("sinks", *t.sinks, 1);
    check_dtype_and_device("sinks", *t.sinks, DType::fp32, t.q);
    check_same("sinks", "heads", t.sinks->shape[0], "q's", t.q.shape[2]);
  }
  check_options(options);
}

void check_is_aligned(const char* argument, const void* data, int alignment_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % alignment_bytes != 0) {
    fail(argument, "starts " + std::to_string(address % alignment_bytes) + " bytes past a " +
                       std::to_string(alignment_bytes) + "-byte boundary, must be aligned to " +
                       std::to_string(alignment_bytes) + " bytes");
  }
}

// Base address and outer strides against what the kernel's loads and stores assume. A dimension of
// size 1 is never stepped over: its stride does not matter.
void check_alignment(const char* argument, const ConstTensorView& tensor, int alignment_bytes) {
  check_is_aligned(argument, tensor.data, alignment_bytes);
  const std::int64_t step = alignment_bytes / static_cast<int>(size_bytes(tensor.dtype));
  for (int i = 0; i + 1 < tensor.rank; ++i) {
    const bool aligned = tensor.stride[i] >= 0 && tensor.stride[i] % step == 0;
    if (tensor.device.kind == DeviceKind::cuda && tensor.shape[i] > 1 && !aligned) {
      fail(argument, "has stride " + std::to_string(tensor.stride[i]) + " in dimension " +
                         std::to_string(i) + ", must be a non-negative multiple of " +
                         std::to_string(step) + " elements");
    }
  }
}

AttentionProblem problem_of(const AttentionTensors& t, const AttentionOptions& options) {
  return {.dtype = t.q.dtype,
          .batch = t.q.shape[0],
          .q_len = t.q.shape[1],
          .kv_len = t.k.shape[1],
          .heads = t.q.shape[2],
          .kv_heads = t.k.shape[2],
          .head_dim = t.q.shape[3],
          .causal = options.causal,
          .window = options.window.left || options.window.right,
          .softcap = options.softcap > 0,
          .sinks = t.sinks.has_value()};
}

void throw_if(const std::optional<Reason>& reason) {
  if (reason) {
    throw Error(reason->code, reason->argument, reason->message);
  }
}

const KernelInfo& named_kernel(std::string_view kernel_name) {
  if (const KernelInfo* kernel = find_kernel(kernel_name)) {
    return *kernel;
  }
  std::string known = "auto";
  for (const KernelInfo& kernel : kernels()) {
    known += ", " + std::string(kernel.name);
  }
  fail("kernel", "is '" + std::string(kernel_name) + "', must be one of " + known);
}

// The kernel that will run: the named one, or for "auto" the last of the table that can, since the
// table ascends in speed.
const KernelInfo& select_kernel(const AttentionTensors& t, const AttentionOptions& options) {
  const AttentionProblem problem = problem_of(t, options);
  if (options.kernel != "auto") {
    const KernelInfo& kernel = named_kernel(options.kernel);
    if (kernel.device != t.q.device.kind) {
      fail("q", "is on " + name(t.q.device) + ", kernel " + std::string(kernel.name) +
                    " takes tensors on " + (kernel.device == DeviceKind::cpu ? "the cpu" : "cuda"));
    }
    throw_if(can_run(kernel, problem, device_info(t.q.device)));
    return kernel;
  }
  const DeviceInfo& device = device_info(t.q.device);
  std::optional<Reason> first_reason;
  for (std::size_t i = kernels().size(); i-- > 0;) {
    const KernelInfo& kernel = kernels()[i];
    if (kernel.operation != "attention" || kernel.device != t.q.device.kind) {
      continue;
    }
    const std::optional<Reason> reason = can_run(kernel, problem, device);
    if (!reason) {
      return kernel;
    }
    if (!first_reason) {
      first_reason = reason;
    }
  }
  throw_if(first_reason);
  throw Error(ErrorCode::unsupported, "kernel", "no kernel takes tensors on " + name(t.q.device));
}

const KernelInfo& check_and_select(const AttentionTensors& t, const AttentionOptions& options) {
  check_arguments(t, options);
  const KernelInfo& kernel = select_kernel(t, options);
  const std::array<std::pair<const char*, ConstTensorView>, 4> tensors{
      {{"q", t.q}, {"k", t.k}, {"v", t.v}, {"o", t.o}}};
  for (const auto& [argument, tensor] : tensors) {
    const int natural = static_cast<int>(size_bytes(tensor.dtype));
    check_alignment(argument, tensor, std::max(kernel.alignment_bytes, natural));
  }
  if (t.lse) {
    check_is_aligned("lse", t.lse->data, sizeof(float));
  }
  if (t.sinks) {
    check_is_aligned("sinks", t.sinks->data, sizeof(float));
  }
  return kernel;
}

void check_workspace(const KernelInfo& kernel, const AttentionProblem& problem,
                     Workspace workspace) {
  const std::size_t needed = workspace_bytes(kernel, problem);
  if (needed == 0) {
    return;
  }
  if (workspace.data == nullptr || workspace.bytes < needed) {
    throw Error(ErrorCode::workspace_too_small, "workspace",
                "has " + std::to_string(workspace.data ? workspace.bytes : 0) + " bytes, kernel " +
                    std::string(kernel.name) + " needs " + std::to_string(needed) +
                    " for this problem");
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment_bytes != 0) {
    fail("workspace", "must be aligned to " + std::to_string(kWorkspaceAlignment_bytes) + " bytes");
  }
}

// Strides of dimensions that are never stepped over become 0, whatever the caller left there.
OuterStrides outer_strides(const ConstTensorView& t, int batch, int seq, int head) {
  const auto stride = [&](int i) { return t.shape[i] > 1 ? t.stride[i] : 0; };
  return {.batch = stride(batch), .seq = stride(seq), .head = stride(head)};
}

AttentionParams make_params(const AttentionTensors& t, const AttentionOptions& options,
                            Workspace workspace) {
  AttentionParams params;
  params.q = t.q.data;
  params.k = t.k.data;
  params.v = t.v.data;
  params.o = t.o.data;
  params.workspace = workspace.data;
  params.dtype = t.q.dtype;
  params.batch = static_cast<int>(t.q.shape[0]);
  params.q_len = static_cast<int>(t.q.shape[1]);
  params.kv_len = static_cast<int>(t.k.shape[1]);
  params.heads = static_cast<int>(t.q.shape[2]);
  params.kv_heads = static_cast<int>(t.k.shape[2]);
  params.head_dim = static_cast<int>(t.q.shape[3]);
  params.q_stride = outer_strides(t.q, 0, 1, 2);
  params.k_stride = outer_strides(t.k, 0, 1, 2);
  params.v_stride = outer_strides(t.v, 0, 1, 2);
  params.o_stride = outer_strides(t.o, 0, 1, 2);
  if (t.lse) {
    params.lse = static_cast<float*>(t.lse->data);
    params.lse_stride = outer_strides(*t.lse, 0, 2, 1);
  }
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.head_dim))));
  params.causal = options.causal;
  const auto limit = [](std::optional<std::int64_t> side) {
    return static_cast<int>(std::min<std::int64_t>(side.value_or(kNoLimit), kNoLimit));
  };
  params.window_left = limit(options.window.left);
  params.window_right = limit(options.window.right);
  params.softcap = options.softcap;
  if (t.sinks) {
    params.sinks = static_cast<const float*>(t.sinks->data);
    params.sinks_stride = t.sinks->stride[0];
  }
  return params;
}

}  // namespace

std::size_t attention_workspace_bytes(const AttentionTensors& tensors,
                                      const AttentionOptions& options) {
  return workspace_bytes(check_and_select(tensors, options), problem_of(tensors, options));
}

void attention(const AttentionTensors& tensors, const AttentionOptions& options,
               Workspace workspace, Stream stream) {
  const KernelInfo& kernel = check_and_select(tensors, options);
  check_workspace(kernel, problem_of(tensors, options), workspace);
  const AttentionParams params = make_params(tensors, options, workspace);
  if (kernel.device == DeviceKind::cpu) {
    cpu::attention(params, stream);
  } else {
    cuda::run_attention(kernel.name, params, tensors.q.device.index, stream);
  }
}

}  // namespace tilewright
