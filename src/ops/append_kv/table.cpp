// The table of append_kv's kernels, and what their facts ask of a problem.
#include "cpu/cpu_append_kv.hpp"
#include "ops/append_kv/kernels.hpp"
#include "ops/attention_table.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {

namespace {

using Row = Kernel<AppendKv>;

constexpr int kVector = 8;  // elements that a thread of the GPU's kernel takes at once

std::vector<Row> make_table() {
  return finished<AppendKv>({
      {.info = {.name = "cpu",
                .summary = "rows on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/using.md"},
       .launch = without_plan<AppendKv, cpu::append_kv>()},
      {.info = {.name = "hopper",
                .summary = "up to a warp for each row and head, vectors of 16 bytes",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = {DType::fp16, DType::bf16},
                .alignment_bytes = 16,
                .doc = "docs/using.md"},
       .facts = {.head_dim_multiple = kVector},
       .launch = built_without_plan<AppendKv, cuda::launch_append_kv>()},
  });
}

std::optional<Reason> size_reason(const AppendKvProblem& problem) {
  return size_range_reason({{"rows", problem.rows},
                            {"heads", std::max<std::int64_t>(problem.heads, 1)},
                            {"kv_heads", problem.kv_heads},
                            {"head_dim", problem.head_dim},
                            {"value_dim", value_dim_of(problem)}});
}

// The number of a row's head must fit 31 bits.
std::optional<Reason> launch_reason(const Row& kernel, const AppendKvProblem& problem) {
  const double heads =
      static_cast<double>(problem.rows) * static_cast<double>(2 * problem.kv_heads + problem.heads);
  if (kernel.info.device != DeviceKind::cuda || heads < 0x1p31) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, "k", "2^31 or more heads of q, k and v in all rows", "fewer");
}

}  // namespace

std::vector<Limit> limits_of(const AppendKvFacts& facts) {
  return facts.head_dim_multiple == 1
             ? std::vector<Limit>{}
             : std::vector<Limit>{
                   {"head_dim", "multiples of " + std::to_string(facts.head_dim_multiple)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const AppendKvProblem& problem) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "k", problem.dtype)) {
    return reason;
  }
  const int multiple = kernel.facts.head_dim_multiple;
  if (auto reason = multiple_reason(kernel.info, "k", "head_dim", problem.head_dim, multiple)) {
    return reason;
  }
  if (auto reason =
          multiple_reason(kernel.info, "v", "head_dim", value_dim_of(problem), multiple)) {
    return reason;
  }
  return launch_reason(kernel, problem);
}

template <>
std::span<const Row> Table<AppendKv>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<AppendKv>;
template Selection<AppendKv> select_kernel(std::string_view, const AppendKvProblem&,
                                           DeviceArgument);

}  // namespace tilewright
