// The table of gemm_bf16's kernels, and what their facts ask of a problem.
#include "ops/gemm_bf16/params.hpp"
#include "ops/kernel_table.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"

namespace tilewright {

// Each queues a kernel on the current device. Its arguments have been checked.
namespace cuda {
void launch_gemm_naive(const GemmBf16Params& params, Stream stream);
void launch_gemm_tiled(const GemmBf16Params& params, Stream stream);
void launch_gemm_swizzled(const GemmBf16Params& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<GemmBf16>;

template <void (*kLaunch)(const GemmBf16Params&, Stream)>
Row step(std::string_view name, std::string_view summary) {
  return {.info = {.name = std::string(name),
                   .summary = summary,
                   .device = DeviceKind::cuda,
                   .architectures = {90},
                   .dtypes = {DType::bf16},
                   .alignment_bytes = 16,
                   .doc = "docs/worklog/gemm-ladder.md"},
          .facts = {.n_multiple = 16, .k_multiple = 64},
          .launch = built_without_plan<GemmBf16, kLaunch>()};
}

std::vector<Row> make_table() {
  return finished<GemmBf16>({
      step<cuda::launch_gemm_naive>("gemm_naive", "one thread per output"),
      step<cuda::launch_gemm_tiled>("gemm_tiled", "tiles in shared memory, CUDA cores"),
      step<cuda::launch_gemm_swizzled>("gemm_swizzled", "swizzled tiles, tensor cores by mma.sync"),
  });
}

}  // namespace

std::vector<Limit> limits_of(const GemmBf16Facts& facts) {
  return {{"N", "multiples of " + std::to_string(facts.n_multiple)},
          {"K", "multiples of " + std::to_string(facts.k_multiple)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const GemmBf16Problem& problem) {
  if (auto reason = size_range_reason({{"m", problem.m}, {"n", problem.n}, {"k", problem.k}})) {
    return reason;
  }
  if (auto reason = gemm_size_reason(kernel.info, 1, problem.m, problem.n, problem.k)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel.info, "b", "N", problem.n, kernel.facts.n_multiple)) {
    return reason;
  }
  return multiple_reason(kernel.info, "b", "K", problem.k, kernel.facts.k_multiple);
}

template <>
std::span<const Row> Table<GemmBf16>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<GemmBf16>;
template Selection<GemmBf16> select_kernel(std::string_view, const GemmBf16Problem&,
                                           DeviceArgument);

}  // namespace tilewright
