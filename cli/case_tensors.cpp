#include "cli/case_tensors.hpp"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <vector>

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using Shape = std::array<std::int64_t, 4>;

constexpr int kPoison = 0xFF;  // this byte repeated is a NaN in every dtype

Shape query_shape(const AttentionProblem& p) { return {p.batch, p.q_len, p.heads, p.head_dim}; }

Shape key_shape(const AttentionProblem& p) { return {p.batch, p.kv_len, p.kv_heads, p.head_dim}; }

Shape value_shape(const AttentionProblem& p) {
  return {p.batch, p.kv_len, p.kv_heads, p.value_dim};
}

Shape output_shape(const AttentionProblem& p) { return {p.batch, p.q_len, p.heads, p.value_dim}; }

std::array<std::int64_t, 1> sinks_shape(const AttentionProblem& p) { return {p.heads}; }

std::array<std::int64_t, 3> lse_shape(const AttentionProblem& p) {
  return {p.batch, p.heads, p.q_len};
}

template <std::size_t Rank>
HostTensor host_tensor(DType dtype, const std::array<std::int64_t, Rank>& shape) {
  return {dtype, std::vector<std::int64_t>(shape.begin(), shape.end())};
}

template <std::size_t Rank>
HostTensor random_tensor(DType dtype, const std::array<std::int64_t, Rank>& shape,
                         std::uint64_t seed) {
  HostTensor tensor = host_tensor(dtype, shape);
  reference::fill_normal(tensor.view(), seed);
  return tensor;
}

// Refuses a case if the host cannot hold its inputs, their copy on the machine and the result.
const AttentionProblem& check_memory(const AttentionProblem& p) {
  check_host_memory(2 * compulsory_bytes(p));
  return p;
}

}  // namespace

HostInputs::HostInputs(const AttentionCase& c)
    : case_(c),
      q_(random_tensor(c.problem.dtype, query_shape(check_memory(c.problem)), 3 * c.seed)),
      k_(random_tensor(c.problem.dtype, key_shape(c.problem), 3 * c.seed + 1)),
      v_(random_tensor(c.problem.dtype, value_shape(c.problem), 3 * c.seed + 2)) {
  if (c.problem.sinks) {
    sinks_ = random_tensor(DType::fp32, sinks_shape(c.problem), 3 * c.seed + 3);
  }
}

const Expected& HostInputs::expected() {
  if (!expected_) {
    AttentionTensors tensors{.q = q_.view(), .k = k_.view(), .v = v_.view(), .o = {}};
    if (sinks_) {
      tensors.sinks = sinks_->view();
    }
    expected_ = expect(tensors, case_.options("auto"));
  }
  return *expected_;
}

MachineTensors::MachineTensors(Machine& machine, const AttentionCase& c, const HostInputs& inputs)
    : machine_(machine), case_(c) {
  const auto upload = [&](const HostTensor& tensor) {
    Memory copy = machine_.allocate(tensor.bytes());
    machine_.upload(copy.get(), tensor.data(), tensor.bytes());
    return copy;
  };
  q_ = upload(inputs.q());
  k_ = upload(inputs.k());
  v_ = upload(inputs.v());
  if (inputs.sinks()) {
    sinks_ = upload(*inputs.sinks());
  }
  o_ = machine_.allocate(host_tensor(c.problem.dtype, output_shape(c.problem)).bytes());
  lse_ = machine_.allocate(host_tensor(DType::fp32, lse_shape(c.problem)).bytes());
}

AttentionTensors MachineTensors::views(bool with_lse) const {
  const AttentionProblem& p = case_.problem;
  const auto view = [&](const Memory& memory, const Shape& shape) {
    return contiguous(memory.get(), p.dtype, shape, machine_.device());
  };
  AttentionTensors tensors{.q = view(q_, query_shape(p)),
                           .k = view(k_, key_shape(p)),
                           .v = view(v_, value_shape(p)),
                           .o = view(o_, output_shape(p))};
  if (p.sinks) {
    tensors.sinks = contiguous(sinks_.get(), DType::fp32, sinks_shape(p), machine_.device());
  }
  if (with_lse) {
    tensors.lse = contiguous(lse_.get(), DType::fp32, lse_shape(p), machine_.device());
  }
  return tensors;
}

Workspace MachineTensors::make_workspace(std::string_view kernel, const AttentionTensors& tensors) {
  const std::size_t bytes = attention_workspace_bytes(tensors, case_.options(kernel));
  workspace_.reset();  // frees the last kernel's before the next one's is allocated
  if (bytes > 0) {
    workspace_ = machine_.allocate(bytes);
  }
  return {workspace_.get(), bytes};
}

CheckResult MachineTensors::check(std::string_view kernel, const Expected& expected) {
  HostTensor o = host_tensor(case_.problem.dtype, output_shape(case_.problem));
  HostTensor lse = host_tensor(DType::fp32, lse_shape(case_.problem));
  std::memset(o.data(), kPoison, o.bytes());
  std::memset(lse.data(), kPoison, lse.bytes());
  machine_.upload(o_.get(), o.data(), o.bytes());
  machine_.upload(lse_.get(), lse.data(), lse.bytes());

  const AttentionTensors tensors = views(true);
  const Workspace workspace = make_workspace(kernel, tensors);
  machine_.run(
      [&](Stream stream) { attention(tensors, case_.options(kernel), workspace, stream); });
  machine_.download(o.data(), o_.get(), o.bytes());
  machine_.download(lse.data(), lse_.get(), lse.bytes());
  return cli::check(o.view(), lse.view(), expected);
}

Timing MachineTensors::time(std::string_view kernel, const TimingOptions& options) {
  const AttentionTensors tensors = views(false);
  const Workspace workspace = make_workspace(kernel, tensors);
  const auto launch = [&](Stream stream) {
    attention(tensors, case_.options(kernel), workspace, stream);
  };
  return measure(machine_, launch, options);
}

}  // namespace tilewright::cli
