// The table of merge_states' kernels, and what their facts ask of a problem.
#include "cpu/cpu_merge_states.hpp"
#include "ops/kernel_table.hpp"
#include "ops/merge_states/params.hpp"

namespace tilewright {

namespace cuda {
// Queues the kernel on the current device. Its arguments have been checked.
void launch_merge_states(const MergeStatesParams& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<MergeStates>;

constexpr int kVector = 8;  // elements that a thread of the GPU's kernel takes

std::vector<Row> make_table() {
  return finished<MergeStates>({
      {.info = {.name = "cpu",
                .summary = "rows on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/using.md"},
       .launch = without_plan<MergeStates, cpu::merge_states>()},
      {.info = {.name = "hopper",
                .summary = "a thread for eight values, all parts read once",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 16,
                .doc = "docs/using.md"},
       .facts = {.head_dim_multiple = kVector},
       .launch = built_without_plan<MergeStates, cuda::launch_merge_states>()},
  });
}

// A thread's number must fit 31 bits.
std::optional<Reason> launch_reason(const Row& kernel, const MergeStatesProblem& problem) {
  const double vectors = static_cast<double>(problem.tokens) * static_cast<double>(problem.heads) *
                         static_cast<double>(problem.head_dim) / kVector;
  if (kernel.info.device != DeviceKind::cuda || vectors < 0x1p31) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, "o", "T x H x Dv of 2^34 or more", "less");
}

}  // namespace

std::vector<Limit> limits_of(const MergeStatesFacts& facts) {
  return facts.head_dim_multiple == 1
             ? std::vector<Limit>{}
             : std::vector<Limit>{
                   {"head_dim", "multiples of " + std::to_string(facts.head_dim_multiple)}};
}

std::optional<Reason> facts_reason(const Row& kernel, const MergeStatesProblem& problem) {
  if (auto reason = size_range_reason({{"parts", problem.parts},
                                       {"tokens", problem.tokens},
                                       {"heads", problem.heads},
                                       {"head_dim", problem.head_dim}})) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "o", problem.dtype)) {
    return reason;
  }
  if (auto reason = multiple_reason(kernel.info, "o", "head_dim", problem.head_dim,
                                    kernel.facts.head_dim_multiple)) {
    return reason;
  }
  return launch_reason(kernel, problem);
}

template <>
std::span<const Row> Table<MergeStates>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<MergeStates>;
template Selection<MergeStates> select_kernel(std::string_view, const MergeStatesProblem&,
                                              DeviceArgument);

}  // namespace tilewright
