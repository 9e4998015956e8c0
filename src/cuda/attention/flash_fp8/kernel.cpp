// The kernel flash_fp8 in the table of kernels.
#include <algorithm>
#include <array>

#include "cuda/attention/flash_fp8/configs.hpp"
#include "cuda/attention/flash_fp8/launch.hpp"
#include "ops/attention_fp8/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<AttentionFp8>;

constexpr auto kHeadDims = [] {
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

Plan plan_best(const AttentionFp8Problem& problem, const DeviceInfo& device) {
  const auto* const config = std::ranges::find(kFp8Configs, problem.head_dim,
                                               [](const FlashConfig& c) { return c.head_dim; });
  // A key and its value have 8-bit elements.
  const std::int64_t dims = (config->head_dim + config->value_dim) / 2;
  FlashDetails details{.plan = plan_in_config(problem, device.multiprocessors, *config, dims),
                       .at = {}};
  details.plan.config = static_cast<int>(config - std::begin(kFp8Configs));
  details.at = flash_workspace(problem, details.plan);
  Plan plan(details.at.bytes, details);
  plan.splits = details.plan.splits;
  return plan;
}

}  // namespace

Row flash_fp8_kernel() {
  return {.info = {.name = "flash_fp8",
                   .summary = "production: K8 with persistent blocks, and every feature",
                   .device = DeviceKind::cuda,
                   .architectures = {90},
                   .dtypes = {DType::bf16, DType::fp16},
                   .alignment_bytes = 16,
                   .doc = "docs/worklog/k8.md"},
          .facts = {.head_dims = kHeadDims, .features = kFeatures},
          .plan = plan_best,
          .launch = built<launch_flash_fp8>()};
}

}  // namespace tilewright::cuda
