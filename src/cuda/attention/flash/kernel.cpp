// The kernel flash in the table of kernels, with a variant for each of its configs.
#include <array>
#include <utility>

#include "cuda/attention/flash/launch.hpp"
#include "cuda/attention/flash/plan.hpp"
#include "ops/attention/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<Attention>;

constexpr std::array kHeadDims = {HeadDims{64, 64},   HeadDims{96, 96},   HeadDims{128, 128},
                                  HeadDims{192, 192}, HeadDims{192, 128}, HeadDims{256, 256}};
constexpr std::array kFeatures = {Feature::window, Feature::softcap, Feature::sinks,
                                  Feature::packed, Feature::unnormalized};
constexpr std::array kClusterFeatures = {Feature::softcap, Feature::sinks, Feature::unnormalized};

constexpr auto kHeadDimsOfConfigs = [] {
  std::array<HeadDims, kFlashConfigCount> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {kFlashConfigs[i].head_dim, kFlashConfigs[i].value_dim};
  }
  return all;
}();

Plan plan_in(const AttentionProblem& problem, const DeviceInfo& device, std::optional<int> config) {
  FlashDetails details{.plan = plan_flash(problem, device.multiprocessors, config), .at = {}};
  details.at = flash_workspace(problem, details.plan);
  Plan plan(details.at.bytes, details);
  plan.variant = details.plan.config;
  plan.splits = details.plan.splits;
  return plan;
}

Plan plan_best(const AttentionProblem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, std::nullopt);
}

template <int kConfig>
Plan plan_config(const AttentionProblem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, kConfig);
}

// A config with clusters refuses problems whose blocks would not see the same keys.
template <int kConfig>
std::optional<Reason> refuses(const Row& kernel, const AttentionProblem& problem,
                              const DeviceInfo&) {
  constexpr FlashConfig C = kFlashConfigs[kConfig];
  if (can_share_keys(C, problem)) {
    return std::nullopt;
  }
  if (problem.causal) {
    return Reason{ErrorCode::unsupported, "causal",
                  "is true, kernel " + kernel.info.name + " takes no mask"};
  }
  return takes_reason(kernel.info, "q", "seqlen " + std::to_string(problem.q_len),
                      "a multiple of " + std::to_string(C.cluster) + " tiles of " +
                          std::to_string(C.br()) + " rows");
}

// The variant for config kConfig: `flash`, narrowed to what that config can run.
template <int kConfig>
Row variant_in(Row flash) {
  constexpr FlashConfig C = kFlashConfigs[kConfig];
  flash.info.summary = "flash in this config";
  flash.facts.head_dims = std::span(kHeadDimsOfConfigs).subspan(kConfig, 1);
  if (!C.takes_fp16) {
    flash.info.dtypes = {DType::bf16};
  }
  if (C.cluster > 1) {
    flash.facts.features = kClusterFeatures;
  }
  flash.refuses = refuses<kConfig>;
  flash.plan = plan_config<kConfig>;
  return flash;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& flash, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<Attention>(flash.info.name, {variant_in<kConfigs>(flash)...});
}

}  // namespace

Row flash_kernel() {
  Row flash{.info = {.name = "flash",
                     .summary = "production: K6 with persistent blocks, and every feature",
                     .device = DeviceKind::cuda,
                     .architectures = {90},
                     .dtypes = {DType::bf16, DType::fp16},
                     .alignment_bytes = 16,
                     .doc = "docs/worklog/flash.md"},
            .facts = {.head_dims = kHeadDims, .features = kFeatures},
            .plan = plan_best,
            .launch = built<launch_flash>()};
  static const auto& variants =
      kept(variants_of(flash, std::make_integer_sequence<int, kFlashConfigCount>{}));
  flash.variants = variants;
  return flash;
}

}  // namespace tilewright::cuda
