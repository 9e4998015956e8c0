// The kernel nvfp4 in the table of kernels, with a variant for each of its configs.
#include <array>
#include <utility>

#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/gemm/nvfp4/plan.hpp"
#include "ops/gemm_nvfp4/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<GemmNvfp4>;

constexpr std::array kOutDTypes = {DType::fp32, DType::fp16, DType::bf16};
constexpr std::span<const DType> kHalves = std::span(kOutDTypes).last<2>();
constexpr std::array kWeightForms = {WeightForm::codes, WeightForm::packed};

Plan plan_in(const GemmNvfp4Problem& problem, const DeviceInfo& device, std::optional<int> config) {
  Nvfp4Details details{.plan = plan_nvfp4(problem, device.multiprocessors, config), .at = {}};
  details.at = nvfp4_workspace(problem, details.plan);
  Plan plan(details.at.bytes, details);
  plan.variant = details.plan.config;
  return plan;
}

Plan plan_best(const GemmNvfp4Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, std::nullopt);
}

template <int kConfig>
Plan plan_config(const GemmNvfp4Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, kConfig);
}

// The variant for config kConfig: `nvfp4`, narrowed to what that config can run.
template <int kConfig>
Row variant_in(Row nvfp4) {
  nvfp4.info.summary = "nvfp4 in this config";
  if (!kNvfp4Configs[kConfig].takes_fp32()) {
    nvfp4.facts.out_dtypes = kHalves;
  }
  nvfp4.plan = plan_config<kConfig>;
  return nvfp4;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& nvfp4, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<GemmNvfp4>(nvfp4.info.name, {variant_in<kConfigs>(nvfp4)...});
}

}  // namespace

Row nvfp4_kernel() {
  Row nvfp4{.info = {.name = "nvfp4",
                     .summary = "production: packed weights, dequantised in registers",
                     .device = DeviceKind::cuda,
                     .architectures = {90},
                     .dtypes = {DType::bf16, DType::fp16, DType::e2m1x2},
                     .alignment_bytes = 16,
                     .doc = "docs/worklog/nvfp4-gemm.md"},
            .facts = {.out_dtypes = kOutDTypes,
                      .n_multiple = 16,
                      .k_multiple = 16,
                      .weight_forms = kWeightForms},
            .plan = plan_best,
            .launch = built<launch_nvfp4>()};
  static const auto& variants =
      kept(variants_of(nvfp4, std::make_integer_sequence<int, kNvfp4ConfigCount>{}));
  nvfp4.variants = variants;
  return nvfp4;
}

}  // namespace tilewright::cuda
