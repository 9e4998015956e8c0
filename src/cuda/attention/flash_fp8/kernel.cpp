// The kernel flash_fp8 in the table of kernels, with a variant for each of its configs.
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/attention/flash_fp8/configs.hpp"
#include "cuda/attention/flash_fp8/launch.hpp"
#include "ops/attention_fp8/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<AttentionFp8>;

constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{256, 256}};
constexpr auto kHeadDimsOfConfigs = [] {
  std::array<HeadDims, kFp8ConfigCount> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {kFp8Configs[i].head_dim, kFp8Configs[i].value_dim};
  }
  return all;
}();
constexpr std::array kFeatures = {Fp8Feature::window,        Fp8Feature::softcap,
                                  Fp8Feature::sinks,         Fp8Feature::packed,
                                  Fp8Feature::unnormalized,  Fp8Feature::v_transposed,
                                  Fp8Feature::block_descales};
constexpr std::array kPlainFeatures = {Fp8Feature::v_transposed, Fp8Feature::block_descales};

Plan plan_in(const AttentionFp8Problem& problem, const DeviceInfo& device, int index) {
  const FlashConfig& config = kFp8Configs[index];
  // A key and its value have 8-bit elements.
  const std::int64_t dims = (config.head_dim + config.value_dim) / 2;
  FlashDetails details{.plan = plan_in_config(problem, device.multiprocessors, config, dims),
                       .at = {}};
  details.plan.config = index;
  details.at = flash_workspace(problem, details.plan);
  Plan plan(details.at.bytes, details);
  plan.variant = index;
  plan.splits = details.plan.splits;
  return plan;
}

Plan plan_best(const AttentionFp8Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device,
                 best_config(kFp8Configs, problem, device.multiprocessors).value());
}

template <int kConfig>
Plan plan_config(const AttentionFp8Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, kConfig);
}

// The variant for config kConfig: `flash_fp8`, narrowed to what that config can run.
template <int kConfig>
Row variant_in(Row flash_fp8) {
  flash_fp8.info.summary = "flash_fp8 in this config";
  flash_fp8.facts.head_dims = std::span(kHeadDimsOfConfigs).subspan(kConfig, 1);
  if (kFp8Configs[kConfig].use == FlashUse::larger_plain) {
    flash_fp8.facts.features = kPlainFeatures;
  }
  flash_fp8.plan = plan_config<kConfig>;
  return flash_fp8;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& flash_fp8, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<AttentionFp8>(flash_fp8.info.name, {variant_in<kConfigs>(flash_fp8)...});
}

}  // namespace

Row flash_fp8_kernel() {
  Row flash_fp8{.info = {.name = "flash_fp8",
                         .summary = "production: K8 with persistent blocks, and every feature",
                         .device = DeviceKind::cuda,
                         .architectures = {90},
                         .dtypes = {DType::bf16, DType::fp16},
                         .alignment_bytes = 16,
                         .doc = "docs/worklog/flash-fp8.md"},
                .facts = {.head_dims = kHeadDims, .features = kFeatures},
                .plan = plan_best,
                .launch = built<launch_flash_fp8>()};
  static const auto& variants =
      kept(variants_of(flash_fp8, std::make_integer_sequence<int, kFp8ConfigCount>{}));
  flash_fp8.variants = variants;
  return flash_fp8;
}

}  // namespace tilewright::cuda
