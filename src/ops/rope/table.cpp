// The table of rope's kernels, and what their facts ask of a problem.
#include "cpu/cpu_rope.hpp"
#include "ops/kernel_table.hpp"
#include "ops/rope/kernels.hpp"

namespace tilewright {

namespace {

using Row = Kernel<Rope>;

std::vector<Row> make_table() {
  return finished<Rope>({
      {.info = {.name = "cpu",
                .summary = "rows on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/kv-rows.md"},
       .launch = without_plan<Rope, cpu::rope>()},
      {.info = {.name = "hopper",
                .summary = "up to a warp for each row and head, vectors of 16 bytes",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = {DType::fp16, DType::bf16},
                .alignment_bytes = 16,
                .doc = "docs/kv-rows.md"},
       .facts = {.head_dim_multiple = 8, .rotary_dims_multiple = 16},
       .launch = built_without_plan<Rope, cuda::launch_rope>()},
  });
}

// The number of a row's head must fit 31 bits.
std::optional<Reason> launch_reason(const Row& kernel, const RopeProblem& problem) {
  const double heads = static_cast<double>(problem.rows) * static_cast<double>(problem.heads);
  if (kernel.info.device != DeviceKind::cuda || heads < 0x1p31) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, "x", "2^31 or more heads in all rows", "fewer");
}

}  // namespace

std::vector<Limit> limits_of(const RopeFacts& facts) {
  if (facts.head_dim_multiple == 1) {
    return {};
  }
  return {{"head_dim", "multiples of " + std::to_string(facts.head_dim_multiple)},
          {"rotary_dims", "multiples of " + std::to_string(facts.rotary_dims_multiple)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const RopeProblem& problem) {
  if (auto reason = size_range_reason({{"rows", problem.rows},
                                       {"heads", problem.heads},
                                       {"head_dim", problem.head_dim},
                                       {"rotary_dims", problem.rotary_dims}})) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "x", problem.dtype)) {
    return reason;
  }
  const RopeFacts& facts = kernel.facts;
  if (auto reason = multiple_reason(kernel.info, "x", "head_dim", problem.head_dim,
                                    facts.head_dim_multiple)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel.info, "rotary_cos", "rotary_dims", problem.rotary_dims,
                                    facts.rotary_dims_multiple)) {
    return reason;
  }
  return launch_reason(kernel, problem);
}

template <>
std::span<const Row> Table<Rope>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<Rope>;
template Selection<Rope> select_kernel(std::string_view, const RopeProblem&, DeviceArgument);

}  // namespace tilewright
