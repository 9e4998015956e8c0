// The constraints of matrix products.
#include <algorithm>

#include "registry/reasons.hpp"

namespace tilewright {
namespace {

std::optional<Reason> multiple_reason(const KernelInfo& kernel, const char* what, std::int64_t size,
                                      int multiple) {
  if (size % multiple == 0) {
    return std::nullopt;
  }
  return takes_reason(kernel, "b", std::string(what) + " " + std::to_string(size),
                      "multiples of " + std::to_string(multiple));
}

std::optional<Reason> weight_form_reason(const KernelInfo& kernel, const GemmProblem& problem) {
  const WeightForm form = problem.b_is_packed ? WeightForm::packed : WeightForm::codes;
  if (kernel.weight_forms.empty() ||
      std::ranges::find(kernel.weight_forms, form) != kernel.weight_forms.end()) {
    return std::nullopt;
  }
  const std::string of_kernel = ", kernel " + std::string(kernel.name) + " takes ";
  return Reason{ErrorCode::unsupported, "b",
                problem.b_is_packed
                    ? "is packed" + of_kernel + "codes and scales: use those that were packed"
                    : "is codes" + of_kernel + "a packed weight: use prepack_nvfp4_weight()"};
}

}  // namespace

std::optional<Reason> can_run(const KernelInfo& kernel, const GemmProblem& problem,
                              const DeviceInfo& device) {
  if (auto reason = can_run(kernel, device)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel, kernel.dtypes, "a", problem.a_dtype)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel, kernel.out_dtypes, "c", problem.c_dtype)) {
    return reason;
  }
  if (auto reason = weight_form_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel, "N", problem.n, kernel.n_multiple)) {
    return reason;
  }
  return multiple_reason(kernel, "K", problem.k, kernel.k_multiple);
}

std::size_t workspace_bytes(const KernelInfo&, const GemmProblem&, const DeviceInfo&) { return 0; }

}  // namespace tilewright
