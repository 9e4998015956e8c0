// The table of gemm_nvfp4's kernels, and what their facts ask of a problem.
#include <algorithm>
#include <array>

#include "cpu/cpu_gemm_nvfp4.hpp"
#include "ops/gemm_nvfp4/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {

namespace cuda {
// Queues the kernel on the current device. Its arguments have been checked.
void launch_nvfp4_simple(const GemmNvfp4Params& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<GemmNvfp4>;

constexpr std::array kFloats = {DType::fp32, DType::fp16, DType::bf16};
constexpr std::array kWeightForms = {WeightForm::codes, WeightForm::packed};
constexpr std::span<const WeightForm> kCodes = std::span(kWeightForms).first<1>();

std::vector<Row> make_table() {
  return finished<GemmNvfp4>({
      {.info = {.name = "cpu",
                .summary = "tiles dequantised to FP32, on all cores",
                .device = DeviceKind::cpu,
                .dtypes = {DType::bf16, DType::fp16, DType::e2m1x2},
                .alignment_bytes = 1,
                .doc = "docs/architecture.md"},
       .facts = {.out_dtypes = kFloats, .k_multiple = 16, .weight_forms = kWeightForms},
       .launch = without_plan<GemmNvfp4, cpu::gemm_nvfp4>()},
      {.info = {.name = "nvfp4_simple",
                .summary = "gemm_swizzled with weights dequantised on their way to its tiles",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = {DType::bf16},
                .alignment_bytes = 16,
                .doc = "docs/worklog/gemm-ladder.md"},
       .facts = {.out_dtypes = kFloats, .n_multiple = 16, .k_multiple = 64, .weight_forms = kCodes},
       .launch = built_without_plan<GemmNvfp4, cuda::launch_nvfp4_simple>()},
      cuda::nvfp4_kernel(),
  });
}

std::optional<Reason> weight_form_reason(const Row& kernel, const GemmNvfp4Problem& problem) {
  const WeightForm form = problem.b_is_packed ? WeightForm::packed : WeightForm::codes;
  if (std::ranges::find(kernel.facts.weight_forms, form) != kernel.facts.weight_forms.end()) {
    return std::nullopt;
  }
  const std::string of_kernel = ", kernel " + kernel.info.name + " takes ";
  return Reason{ErrorCode::unsupported, "b",
                problem.b_is_packed
                    ? "is packed" + of_kernel + "codes and scales: use those that were packed"
                    : "is codes" + of_kernel + "a packed weight: use prepack_nvfp4_weight()"};
}

}  // namespace

std::vector<Limit> limits_of(const GemmNvfp4Facts& facts) {
  return {{"b", names_of(facts.weight_forms)},
          {"c", names_of(facts.out_dtypes)},
          {"N", "multiples of " + std::to_string(facts.n_multiple)},
          {"K", "multiples of " + std::to_string(facts.k_multiple)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const GemmNvfp4Problem& problem) {
  if (auto reason = size_range_reason(
          {{"m", problem.m}, {"n", problem.n}, {"k", problem.k}, {"l", problem.l}})) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "a", problem.a_dtype)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.facts.out_dtypes, "c", problem.c_dtype)) {
    return reason;
  }
  if (auto reason = weight_form_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = gemm_size_reason(kernel.info, problem.l, problem.m, problem.n, problem.k)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel.info, "b", "N", problem.n, kernel.facts.n_multiple)) {
    return reason;
  }
  return multiple_reason(kernel.info, "b", "K", problem.k, kernel.facts.k_multiple);
}

template <>
std::span<const Row> Table<GemmNvfp4>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<GemmNvfp4>;
template Selection<GemmNvfp4> select_kernel(std::string_view, const GemmNvfp4Problem&,
                                            DeviceArgument);

}  // namespace tilewright
