#include "cli/attention_case.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/device_memory.hpp"
#include "reference/attention.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;

// ---- Expected results

// Of the finite values.
double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) {
    result = std::isfinite(value) ? std::max(result, std::abs(value)) : result;
  }
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    result = std::max(result, std::abs(a[i] - b[i]));
  }
  return result;
}

// What the oracle gives, and how far O and the LSE may be from it.
struct Expected {
  reference::AttentionResult exact;
  double rel_fro_limit = 0;
  double max_abs_limit = 0;
  double lse_limit = 0;
};

// Computes a problem on host tensors by the oracle. The limits of O are, by its dtype,
//   bf16  3e-3 in relative Frobenius norm; twice the largest error of the BF16-rounded reference
//   fp16  5e-4; twice the largest error of the FP16-rounded reference
//   fp32  1e-5; 1e-4 of the largest output
// That of the LSE is 1e-5 and 2e-6 of the largest, as FP32 scores and sums allow.
Expected expect(const AttentionTensors& tensors, const AttentionOptions& options) {
  Expected expected{.exact = reference::attention(tensors, options)};
  expected.lse_limit = 1e-5 + 2e-6 * largest(expected.exact.lse);
  const auto allow_rounding = [&](reference::Rounding rounding, double rel_fro_limit) {
    const auto rounded = reference::attention(tensors, options, rounding);
    expected.rel_fro_limit = rel_fro_limit;
    expected.max_abs_limit = 2 * largest_difference(rounded.o, expected.exact.o);
  };
  switch (tensors.q.dtype) {
    case DType::bf16:
      allow_rounding(reference::Rounding::bf16, 3e-3);
      break;
    case DType::fp16:
      allow_rounding(reference::Rounding::fp16, 5e-4);
      break;
    case DType::fp32:
      expected.rel_fro_limit = 1e-5;
      expected.max_abs_limit = 1e-4 * largest(expected.exact.o);
      break;
    default:  // no dtype of q
      break;
  }
  return expected;
}

std::string find_failure(const reference::ErrorNorms& o, const reference::ErrorNorms& lse,
                         const Expected& expected) {
  if (!o.same_specials || !lse.same_specials) {
    return fmt::format("{} has NaN or infinity where the reference has none, or the reverse",
                       o.same_specials ? "lse" : "o");
  }
  if (!(o.rel_fro <= expected.rel_fro_limit)) {
    return fmt::format("o's relative error is {:.2e}, must be at most {:.2e}", o.rel_fro,
                       expected.rel_fro_limit);
  }
  if (!(o.max_abs <= expected.max_abs_limit)) {
    return fmt::format("o's largest error is {:.2e}, must be at most {:.2e}", o.max_abs,
                       expected.max_abs_limit);
  }
  if (!(lse.max_abs <= expected.lse_limit)) {
    return fmt::format("lse's largest error is {:.2e}, must be at most {:.2e}", lse.max_abs,
                       expected.lse_limit);
  }
  return "";
}

// ---- Tensors

struct Inputs {
  HostTensor q, k, v;
  std::optional<HostTensor> sinks;
  std::optional<Expected> expected;
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
    const reference::ErrorNorms o = reference::compare(o_.host.view(), expected().exact.o);
    const reference::ErrorNorms lse = reference::compare(lse_.host.view(), expected().exact.lse);
    return {.rel_fro_error = o.rel_fro,
            .max_abs_error = o.max_abs,
            .failure = find_failure(o, lse, expected()),
            .summary = fmt::format("relative {:.1e}, max {:.1e}, lse {:.1e}", o.rel_fro, o.max_abs,
                                   lse.max_abs)};
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
  const Expected& expected() {
    if (!inputs_.expected) {
      AttentionTensors tensors{
          .q = inputs_.q.view(), .k = inputs_.k.view(), .v = inputs_.v.view(), .o = {}};
      if (inputs_.sinks) {
        tensors.sinks = inputs_.sinks->view();
      }
      inputs_.expected = expect(tensors, options_);
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

Json side_of_window(const std::optional<std::int64_t>& side) { return side ? Json(*side) : Json(); }

class AttentionCase final : public CaseOf<Attention> {
 public:
  AttentionCase(const AttentionProblem& sizes, const AttentionOptions& options, std::uint64_t seed)
      : problem_(sizes), options_(options), seed_(seed) {
    problem_.causal = options.causal;
    problem_.window = options.window.left || options.window.right;
    problem_.softcap = options.softcap > 0;
  }

  std::string_view operation() const override { return Attention::kName; }

  Json to_json() const override {
    const AttentionProblem& p = problem_;
    Json object = {{"dtype", name(p.dtype)}, {"batch", p.batch},     {"q_len", p.q_len},
                   {"kv_len", p.kv_len},     {"heads", p.heads},     {"kv_heads", p.kv_heads},
                   {"head_dim", p.head_dim}, {"v_dim", p.value_dim}, {"causal", p.causal}};
    if (options_.scale) {
      object["scale"] = *options_.scale;
    }
    if (p.window) {
      object["window"] = {side_of_window(options_.window.left),
                          side_of_window(options_.window.right)};
    }
    if (p.softcap) {
      object["softcap"] = options_.softcap;
    }
    if (p.sinks) {
      object["sinks"] = true;
    }
    return object;
  }

  // "bf16 b4 q4096 kv4096 h16/16 d128 causal", "... d192/128 full window softcap sinks"
  std::string label() const override {
    const AttentionProblem& p = problem_;
    const std::string head_dims = p.head_dim == p.value_dim
                                      ? fmt::format("d{}", p.head_dim)
                                      : fmt::format("d{}/{}", p.head_dim, p.value_dim);
    std::string text =
        fmt::format("{} b{} q{} kv{} h{}/{} {} {}", name(p.dtype), p.batch, p.q_len, p.kv_len,
                    p.heads, p.kv_heads, head_dims, p.causal ? "causal" : "full");
    for (const Feature feature : {Feature::window, Feature::softcap, Feature::sinks}) {
      if (p.asks_for(feature)) {
        text += fmt::format(" {}", name(feature));
      }
    }
    return text;
  }

  std::string arguments() const override {
    const AttentionProblem& p = problem_;
    std::string text = fmt::format(
        "attention --dtype {} --batch {} --seqlen {} --kv-seqlen {} --heads {} --kv-heads {} "
        "--headdim {} --v-headdim {} --{}causal --window-left {} --window-right {} --softcap {} "
        "--{}sinks --seed {}",
        name(p.dtype), p.batch, p.q_len, p.kv_len, p.heads, p.kv_heads, p.head_dim, p.value_dim,
        p.causal ? "" : "no-", options_.window.left.value_or(kNoWindow),
        options_.window.right.value_or(kNoWindow), options_.softcap, p.sinks ? "" : "no-", seed_);
    if (options_.scale) {
      text += fmt::format(" --scale {}", *options_.scale);
    }
    return text;
  }

  // 2 B H (D + Dv) for each pair of a query and a key.
  double flops() const override {
    const AttentionProblem& p = problem_;
    return 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) * pairs() *
           static_cast<double>(p.head_dim + p.value_dim);
  }

  // Those of q, k, v and o.
  double bytes() const override {
    const AttentionProblem& p = problem_;
    const double query_rows = static_cast<double>(p.q_len) * static_cast<double>(p.heads);
    const double key_rows = static_cast<double>(p.kv_len) * static_cast<double>(p.kv_heads);
    return (query_rows + key_rows) * static_cast<double>(p.batch) *
           static_cast<double>(p.head_dim + p.value_dim) * static_cast<double>(size_bytes(p.dtype));
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<Attention>(kernel.name), problem_, device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!inputs_) {
      inputs_ = make_inputs();
    }
    return std::make_unique<Tensors>(problem_, options_, *inputs_, machine);
  }

 private:
  // As the race counts them: half of all pairs under a causal mask with as many queries as keys,
  // else the pairs that are seen.
  double pairs() const {
    const AttentionProblem& p = problem_;
    if (!p.window && (!p.causal || p.q_len == p.kv_len)) {
      const double all = static_cast<double>(p.q_len) * static_cast<double>(p.kv_len);
      return p.causal ? all / 2 : all;
    }
    const std::int64_t all = p.q_len + p.kv_len;
    const std::int64_t left = std::min(options_.window.left.value_or(all), all);
    const std::int64_t right = p.causal ? 0 : std::min(options_.window.right.value_or(all), all);
    double seen = 0;
    for (std::int64_t i = 0; i < p.q_len; ++i) {
      const std::int64_t here = i + p.kv_len - p.q_len;
      const std::int64_t first = std::max<std::int64_t>(here - left, 0);
      const std::int64_t end = std::min(here + right + 1, p.kv_len);
      seen += static_cast<double>(std::max<std::int64_t>(end - first, 0));
    }
    return seen;
  }

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
  AttentionOptions options_;
  std::uint64_t seed_;
  std::optional<Inputs> inputs_;
};

}  // namespace

std::unique_ptr<Case> make_attention_case(const AttentionProblem& sizes,
                                          const AttentionOptions& options, std::uint64_t seed) {
  return std::make_unique<AttentionCase>(sizes, options, seed);
}

}  // namespace tilewright::cli
