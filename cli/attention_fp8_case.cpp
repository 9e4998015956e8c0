#include "cli/attention_fp8_case.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/attention_check.hpp"
#include "cli/attention_sizes.hpp"
#include "cli/device_memory.hpp"
#include "reference/attention_fp8.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;

constexpr int kDescaleRows = 128;

struct Inputs {
  HostTensor q, k, v;  // v: transposed if incoherent
  HostTensor q_descale, k_descale, v_descale;
  std::optional<HostTensor> sinks;
  std::optional<ExpectedAttention> expected;
};

// The tensors of a call, each made by view_of from an input.
template <typename ViewOf>
AttentionFp8Tensors tensors_of(Inputs& inputs, bool incoherent, ViewOf view_of) {
  AttentionFp8Tensors tensors{.q = view_of(inputs.q),
                              .k = view_of(inputs.k),
                              .o = {},
                              .q_descale = view_of(inputs.q_descale),
                              .k_descale = view_of(inputs.k_descale),
                              .v_descale = view_of(inputs.v_descale)};
  (incoherent ? tensors.v_transposed : tensors.v) = view_of(inputs.v);
  if (inputs.sinks) {
    tensors.sinks = view_of(*inputs.sinks);
  }
  return tensors;
}

class Tensors final : public CaseTensors {
 public:
  Tensors(const AttentionFp8Problem& p, const AttentionFp8Options& options, Inputs& inputs,
          Machine& machine)
      : options_(options),
        inputs_(inputs),
        memory_(machine),
        o_(memory_.output(p.dtype, {p.batch, p.q_len, p.heads, p.value_dim})),
        lse_(memory_.output(DType::fp32, {p.batch, p.heads, p.q_len})),
        tensors_(tensors_of(inputs, p.v_transposed,
                            [&](HostTensor& tensor) { return memory_.upload(tensor); })) {
    tensors_.o = o_.view;
  }

  // Without LSE.
  Launch launch(const KernelInfo& kernel) override { return launch(kernel, tensors_); }

  // With LSE.
  CheckResult check(const KernelInfo& kernel) override {
    AttentionFp8Tensors with_lse = tensors_;
    with_lse.lse = lse_.view;
    memory_.run(launch(kernel, with_lse), {&o_, &lse_});
    return check_attention(o_, lse_, expected());
  }

 private:
  Launch launch(const KernelInfo& kernel, const AttentionFp8Tensors& tensors) {
    AttentionFp8Options options = options_;
    options.kernel = kernel.name;
    const Workspace workspace = memory_.workspace(attention_fp8_workspace_bytes(tensors, options));
    return [tensors, options, workspace](Stream stream) {
      attention_fp8(tensors, options, workspace, stream);
    };
  }

  // Takes long at the first call of a case.
  const ExpectedAttention& expected() {
    if (!inputs_.expected) {
      const AttentionFp8Tensors tensors = tensors_of(
          inputs_, options_.descale_rows > 0, [](HostTensor& tensor) { return tensor.view(); });
      inputs_.expected = expect_attention(DType::e4m3, [&](reference::Rounding rounding) {
        return reference::attention_fp8(tensors, options_, rounding);
      });
      inputs_.expected->lse_limit += score_limit(tensors);
    }
    return *inputs_.expected;
  }

  // The largest error that tensor cores may leave in a score.
  double score_limit(const AttentionFp8Tensors& tensors) const {
    double largest = 0;
    for (const double error : reference::magnitudes(tensors, options_).score_errors) {
      largest = std::isfinite(error) ? std::max(largest, error) : largest;
    }
    return largest;
  }

  AttentionFp8Options options_;
  Inputs& inputs_;
  DeviceMemory memory_;
  Output o_, lse_;
  AttentionFp8Tensors tensors_;
};

// ---- Inputs

// The descale of each sequence and `count` neighbouring groups of heads.
HostTensor head_descales(const HostTensor& rows, std::int64_t count) {
  constexpr double kE4m3Max = 448;
  const ConstTensorView t = rows.view();
  const std::int64_t group = t.shape[2] / count;
  std::vector<double> amax(static_cast<std::size_t>(t.shape[0] * count), 0.0);
  for (std::int64_t i = 0; i < t.shape[0] * t.shape[1] * t.shape[2]; ++i) {
    const std::int64_t b = i / (t.shape[1] * t.shape[2]);
    double& its = amax[static_cast<std::size_t>(b * count + i % t.shape[2] / group)];
    for (std::int64_t d = 0; d < t.shape[3]; ++d) {
      its = std::max(its, std::abs(reference::load(t, i * t.shape[3] + d)));
    }
  }
  HostTensor descales(DType::fp32, {t.shape[0], count});
  for (std::size_t i = 0; i < amax.size(); ++i) {
    reference::store(descales.view(), static_cast<std::int64_t>(i), amax[i] / kE4m3Max);
  }
  return descales;
}

// Descales of groups of heads as those of heads.
HostTensor repeated(const HostTensor& descales, std::int64_t heads) {
  const ConstTensorView t = descales.view();
  HostTensor all(DType::fp32, {t.shape[0], heads});
  for (std::int64_t i = 0; i < t.shape[0] * heads; ++i) {
    const std::int64_t its = i / heads * t.shape[1] + i % heads / (heads / t.shape[1]);
    reference::store(all.view(), i, reference::load(t, its));
  }
  return all;
}

HostTensor quantize_by_heads(const HostTensor& rows, const HostTensor& descales) {
  const ConstTensorView t = rows.view();
  HostTensor codes(DType::e4m3, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]});
  const HostTensor of_heads = repeated(descales, t.shape[2]);
  rotate_quantize({.x = t, .out = codes.view(), .fixed_descale = of_heads.view()});
  return codes;
}

struct Quantized {
  HostTensor codes;
  HostTensor descale;
};

Quantized quantize_by_blocks(const HostTensor& rows, std::optional<std::uint64_t> seed,
                             bool is_transposed) {
  const ConstTensorView t = rows.view();
  const std::int64_t columns = (t.shape[1] + 15) / 16 * 16;
  Quantized result{
      is_transposed ? HostTensor(DType::e4m3, {t.shape[0], t.shape[2], t.shape[3], columns})
                    : HostTensor(DType::e4m3, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}),
      HostTensor(DType::fp32,
                 {t.shape[0], t.shape[2], (t.shape[1] + kDescaleRows - 1) / kDescaleRows})};
  RotateQuantizeTensors tensors{.x = t, .descale = result.descale.view()};
  (is_transposed ? tensors.out_transposed : tensors.out) = result.codes.view();
  rotate_quantize(tensors, {.descale_rows = kDescaleRows, .seed = seed});
  return result;
}

HostTensor random(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  HostTensor tensor(dtype, std::move(shape));
  reference::fill_normal(tensor.view(), seed);
  return tensor;
}

// ---- The case

class AttentionFp8Case final : public CaseOf<AttentionFp8> {
 public:
  AttentionFp8Case(const AttentionProblem& sizes, const AttentionFeatures& features,
                   bool incoherent, std::uint64_t seed)
      : problem_{sizes}, features_(features), seed_(seed) {
    set_features(features, problem_);
    problem_.dtype = DType::bf16;
    problem_.v_transposed = incoherent;
    problem_.descale_rows = incoherent ? kDescaleRows : 0;
  }

  std::string_view operation() const override { return AttentionFp8::kName; }

  Json to_json() const override {
    Json object = sizes_to_json(problem_, name(DType::e4m3), features_);
    if (incoherent()) {
      object["incoherent"] = true;
    }
    return object;
  }

  std::string label() const override {
    return size_label(problem_, name(DType::e4m3), features_) + (incoherent() ? " incoherent" : "");
  }

  std::string arguments() const override {
    return fmt::format("{} {} --seed {}", size_arguments(problem_, name(DType::e4m3), features_),
                       incoherent() ? "--incoherent" : "--no-incoherent", seed_);
  }

  double flops() const override { return attention_flops(problem_, features_); }

  double bytes() const override {
    return attention_bytes(problem_, static_cast<double>(size_bytes(DType::e4m3)),
                           static_cast<double>(size_bytes(problem_.dtype)));
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<AttentionFp8>(kernel.name), problem_, device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!inputs_) {
      inputs_ = make_inputs();
    }
    const AttentionFp8Options options{.causal = features_.causal,
                                      .window = features_.window(),
                                      .scale = features_.scale,
                                      .softcap = features_.softcap,
                                      .descale_rows = problem_.descale_rows};
    return std::make_unique<Tensors>(problem_, options, *inputs_, machine);
  }

 private:
  bool incoherent() const { return problem_.v_transposed; }

  Inputs make_inputs() const {
    const AttentionFp8Problem& p = problem_;
    check_host_memory(4 * bytes());  // the inputs before they are quantised, too
    const HostTensor q = random(DType::bf16, {p.batch, p.q_len, p.heads, p.head_dim}, 3 * seed_);
    const HostTensor k =
        random(DType::bf16, {p.batch, p.kv_len, p.kv_heads, p.head_dim}, 3 * seed_ + 1);
    const HostTensor v =
        random(DType::bf16, {p.batch, p.kv_len, p.kv_heads, p.value_dim}, 3 * seed_ + 2);
    std::optional<HostTensor> sinks;
    if (p.sinks) {
      sinks = random(DType::fp32, {p.heads}, 3 * seed_ + 3);
    }
    if (incoherent()) {
      Quantized of_q = quantize_by_blocks(q, seed_, false);
      Quantized of_k = quantize_by_blocks(k, seed_, false);
      Quantized of_v = quantize_by_blocks(v, std::nullopt, true);
      return {std::move(of_q.codes),   std::move(of_k.codes),
              std::move(of_v.codes),   std::move(of_q.descale),
              std::move(of_k.descale), std::move(of_v.descale),
              std::move(sinks),        std::nullopt};
    }
    const HostTensor q_descale = head_descales(q, p.kv_heads);
    const HostTensor k_descale = head_descales(k, p.kv_heads);
    const HostTensor v_descale = head_descales(v, p.kv_heads);
    return {quantize_by_heads(q, q_descale),
            quantize_by_heads(k, k_descale),
            quantize_by_heads(v, v_descale),
            q_descale,
            k_descale,
            v_descale,
            std::move(sinks),
            std::nullopt};
  }

  AttentionFp8Problem problem_;
  AttentionFeatures features_;
  std::uint64_t seed_;
  std::optional<Inputs> inputs_;
};

}  // namespace

std::unique_ptr<Case> make_attention_fp8_case(const AttentionProblem& sizes,
                                              const AttentionFeatures& features, bool incoherent,
                                              std::uint64_t seed) {
  return std::make_unique<AttentionFp8Case>(sizes, features, incoherent, seed);
}

}  // namespace tilewright::cli
