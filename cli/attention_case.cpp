#include "cli/attention_case.hpp"

#include <fmt/core.h>

#include "cli/attention_check.hpp"
#include "cli/attention_sizes.hpp"
#include "cli/device_memory.hpp"
#include "reference/attention.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;

// ---- Tensors

struct Inputs {
  HostTensor q, k, v;
  std::optional<HostTensor> sinks;
  std::optional<ExpectedAttention> expected;
};

class Tensors final : public CaseTensors {
 public:
  Tensors(const AttentionProblem& p, const AttentionOptions& options, Inputs& inputs,
          Machine& machine)
      : options_(options),
        inputs_(inputs),
        memory_(machine),
        o_(memory_.output(p.dtype, {p.batch, p.q_len, p.heads, p.value_dim})),
        lse_(memory_.output(DType::fp32, {p.batch, p.heads, p.q_len})),
        tensors_{.q = memory_.upload(inputs.q),
                 .k = memory_.upload(inputs.k),
                 .v = memory_.upload(inputs.v),
                 .o = o_.view} {
    if (inputs.sinks) {
      tensors_.sinks = memory_.upload(*inputs.sinks);
    }
  }

  // Without LSE.
  Launch launch(const KernelInfo& kernel) override { return launch(kernel, tensors_); }

  // With LSE.
  CheckResult check(const KernelInfo& kernel) override {
    AttentionTensors with_lse = tensors_;
    with_lse.lse = lse_.view;
    memory_.run(launch(kernel, with_lse), {&o_, &lse_});
    return check_attention(o_, lse_, expected());
  }

 private:
  Launch launch(const KernelInfo& kernel, const AttentionTensors& tensors) {
    AttentionOptions options = options_;
    options.kernel = kernel.name;
    const Workspace workspace = memory_.workspace(attention_workspace_bytes(tensors, options));
    return [tensors, options, workspace](Stream stream) {
      attention(tensors, options, workspace, stream);
    };
  }

  // Takes long at the first call of a case.
  const ExpectedAttention& expected() {
    if (!inputs_.expected) {
      AttentionTensors tensors{
          .q = inputs_.q.view(), .k = inputs_.k.view(), .v = inputs_.v.view(), .o = {}};
      if (inputs_.sinks) {
        tensors.sinks = inputs_.sinks->view();
      }
      inputs_.expected = expect_attention(tensors.q.dtype, [&](reference::Rounding rounding) {
        return reference::attention(tensors, options_, rounding);
      });
    }
    return *inputs_.expected;
  }

  AttentionOptions options_;
  Inputs& inputs_;
  DeviceMemory memory_;
  Output o_, lse_;
  AttentionTensors tensors_;
};

// ---- The case

class AttentionCase final : public CaseOf<Attention> {
 public:
  AttentionCase(const AttentionProblem& sizes, const AttentionFeatures& features,
                std::uint64_t seed)
      : problem_(sizes), features_(features), seed_(seed) {
    set_features(features, problem_);
  }

  std::string_view operation() const override { return Attention::kName; }

  Json to_json() const override { return sizes_to_json(problem_, name(problem_.dtype), features_); }

  std::string label() const override {
    return size_label(problem_, name(problem_.dtype), features_);
  }

  std::string arguments() const override {
    return fmt::format("{} --seed {}", size_arguments(problem_, name(problem_.dtype), features_),
                       seed_);
  }

  double flops() const override { return attention_flops(problem_, features_); }

  // Those of q, k, v and o.
  double bytes() const override {
    const double element_bytes = static_cast<double>(size_bytes(problem_.dtype));
    return attention_bytes(problem_, element_bytes, element_bytes);
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<Attention>(kernel.name), problem_, device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!inputs_) {
      inputs_ = make_inputs();
    }
    const AttentionOptions options{.causal = features_.causal,
                                   .window = features_.window(),
                                   .scale = features_.scale,
                                   .softcap = features_.softcap};
    return std::make_unique<Tensors>(problem_, options, *inputs_, machine);
  }

 private:
  Inputs make_inputs() const {
    const AttentionProblem& p = problem_;
    check_host_memory(2 * bytes());  // the inputs, their copies on the machine and the result
    const auto random = [](DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
      HostTensor tensor(dtype, std::move(shape));
      reference::fill_normal(tensor.view(), seed);
      return tensor;
    };
    Inputs inputs{.q = random(p.dtype, {p.batch, p.q_len, p.heads, p.head_dim}, 3 * seed_),
                  .k = random(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}, 3 * seed_ + 1),
                  .v = random(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.value_dim}, 3 * seed_ + 2),
                  .sinks = std::nullopt,
                  .expected = std::nullopt};
    if (p.sinks) {
      inputs.sinks = random(DType::fp32, {p.heads}, 3 * seed_ + 3);
    }
    return inputs;
  }

  AttentionProblem problem_;
  AttentionFeatures features_;
  std::uint64_t seed_;
  std::optional<Inputs> inputs_;
};

}  // namespace

std::unique_ptr<Case> make_attention_case(const AttentionProblem& sizes,
                                          const AttentionFeatures& features, std::uint64_t seed) {
  return std::make_unique<AttentionCase>(sizes, features, seed);
}

}  // namespace tilewright::cli
