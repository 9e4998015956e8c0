// The table of rotate_quantize's kernels, and what their facts ask of a problem.
#include <algorithm>
#include <array>

#include "cpu/cpu_rotate_quantize.hpp"
#include "ops/attention_table.hpp"
#include "ops/kernel_table.hpp"
#include "ops/rotate_quantize/params.hpp"

namespace tilewright {

namespace cuda {
void launch_rotate_quantize(const RotateQuantizeParams& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<RotateQuantize>;

constexpr std::array kHeadDims = {64, 128, 256};

std::vector<Row> make_table() {
  return finished<RotateQuantize>({
      {.info = {.name = "cpu",
                .summary = "blocks of rows on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/fp8.md"},
       .launch = without_plan<RotateQuantize, cpu::rotate_quantize>()},
      {.info = {.name = "hopper",
                .summary = "a block of rows in a thread block's registers, one pass",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = {DType::fp16, DType::bf16},
                .alignment_bytes = 16,
                .doc = "docs/fp8.md"},
       .facts = {.head_dims = kHeadDims},
       .launch = built_without_plan<RotateQuantize, cuda::launch_rotate_quantize>()},
  });
}

std::string text_of(const RotateQuantizeFacts& facts) {
  if (facts.head_dims.empty()) {
    return "at most " + std::to_string(kMaxHeadDim);
  }
  std::string all;
  for (const int dim : facts.head_dims) {
    all += (all.empty() ? "" : ", ") + std::to_string(dim);
  }
  return all;
}

std::optional<Reason> head_dim_reason(const Row& kernel, const RotateQuantizeProblem& problem) {
  const std::span<const int> dims = kernel.facts.head_dims;
  const bool takes = dims.empty() ? problem.head_dim <= kMaxHeadDim
                                  : std::ranges::find(dims, problem.head_dim) != dims.end();
  return takes ? std::nullopt
               : std::optional(takes_reason(kernel.info, "x",
                                            "head_dim " + std::to_string(problem.head_dim),
                                            text_of(kernel.facts)));
}

// Rows of all heads, and blocks with those that hold none, must fit 31 bits.
std::optional<Reason> launch_reason(const Row& kernel, const RotateQuantizeProblem& problem) {
  const double sequences = static_cast<double>(problem.batch);
  const double rows = static_cast<double>(problem.heads) *
                      (problem.packed ? static_cast<double>(problem.len) + sequences
                                      : sequences * static_cast<double>(problem.len));
  if (kernel.info.device != DeviceKind::cuda || rows < 0x1p31) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, "x", "2^31 or more heads in all rows", "fewer");
}

}  // namespace

std::vector<Limit> limits_of(const RotateQuantizeFacts& facts) {
  return {{"head_dim", text_of(facts)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const RotateQuantizeProblem& problem) {
  if (auto reason = size_range_reason({{"batch", problem.batch},
                                       {"len", problem.len},
                                       {"heads", problem.heads},
                                       {"head_dim", problem.head_dim}})) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "x", problem.dtype)) {
    return reason;
  }
  if (auto reason = head_dim_reason(kernel, problem)) {
    return reason;
  }
  return launch_reason(kernel, problem);
}

template <>
std::span<const Row> Table<RotateQuantize>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<RotateQuantize>;
template Selection<RotateQuantize> select_kernel(std::string_view, const RotateQuantizeProblem&,
                                                 DeviceArgument);

}  // namespace tilewright
