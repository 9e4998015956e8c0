// The constraints of matrix products.
#include <algorithm>

#include "cuda/gemm/nvfp4/plan.hpp"
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

// Every chunk of 128 columns of every tile has a number of 31 bits, down to tiles of 64 x 8.
std::optional<Reason> size_reason(const KernelInfo& kernel, const GemmProblem& problem) {
  constexpr double kMaxChunks = 0x1p31;
  const auto parts = [](std::int64_t size, std::int64_t of) {
    return static_cast<double>((size + of - 1) / of);
  };
  const double chunks = static_cast<double>(problem.l) * parts(problem.m, 8) *
                        parts(problem.n, 64) * parts(problem.k, 128);
  if (kernel.device != DeviceKind::cuda || chunks < kMaxChunks) {
    return std::nullopt;
  }
  return takes_reason(kernel, "a",
                      "L x M x N x K of 2^47 or more, M, N and K up to multiples of 8, 64 and 128",
                      "less");
}

// Why the kernel cannot run the problem on any device.
std::optional<Reason> problem_reason(const KernelInfo& kernel, const GemmProblem& problem) {
  if (auto reason = size_range_reason(
          {{"m", problem.m}, {"n", problem.n}, {"k", problem.k}, {"l", problem.l}})) {
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
  if (auto reason = size_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel, "N", problem.n, kernel.n_multiple)) {
    return reason;
  }
  return multiple_reason(kernel, "K", problem.k, kernel.k_multiple);
}

}  // namespace

std::optional<Reason> can_run(const KernelInfo& kernel, const GemmProblem& problem,
                              const DeviceInfo& device) {
  if (auto reason = can_run(kernel, device)) {
    return reason;
  }
  return problem_reason(kernel, problem);
}

const KernelInfo& nvfp4_row_of(const GemmProblem& problem, const DeviceInfo& device) {
  const int row = cuda::plan_nvfp4(problem, device.multiprocessors).choice;
  return nvfp4_rows()[static_cast<std::size_t>(row)];
}

std::size_t workspace_bytes(const KernelInfo& kernel, const GemmProblem& problem,
                            const DeviceInfo& device) {
  throw_if(problem_reason(kernel, problem));
  const std::optional<int> row = cuda::nvfp4_row_named(kernel.name);
  if (kernel.name != "nvfp4" && !row) {
    return 0;
  }
  const cuda::Nvfp4Plan plan = cuda::plan_nvfp4(problem, device.multiprocessors, row);
  return cuda::nvfp4_workspace(problem, plan).bytes;
}

}  // namespace tilewright
