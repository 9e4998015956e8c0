// The table of attention's kernels, and what their facts ask of a problem.
#include <algorithm>
#include <array>
#include <limits>

#include "cpu/cpu_attention.hpp"
#include "ops/attention/kernels.hpp"
#include "ops/attention_table.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {

// The rungs of the ladder. Each queues its kernel on the current device; its arguments have been
// checked.
namespace cuda {
void launch_k1(const AttentionParams& params, Stream stream);
void launch_k2(const AttentionParams& params, Stream stream);
void launch_k3_1(const AttentionParams& params, Stream stream);
void launch_k3_2(const AttentionParams& params, Stream stream);
void launch_k3_3(const AttentionParams& params, Stream stream);
void launch_k4_qk(const AttentionParams& params, Stream stream);
void launch_k4(const AttentionParams& params, Stream stream);
void launch_k5(const AttentionParams& params, Stream stream);
void launch_k6_pingpong(const AttentionParams& params, Stream stream);
void launch_k6_overlap(const AttentionParams& params, Stream stream);
void launch_k6(const AttentionParams& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<Attention>;

constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{256, 256}};
constexpr std::span<const HeadDims> kLowerHeadDims = std::span(kHeadDims).first<2>();
constexpr std::array kAllFeatures = {Feature::window, Feature::softcap, Feature::sinks,
                                     Feature::packed, Feature::unnormalized};

template <void (*kLaunch)(const AttentionParams&, Stream)>
Row ladder_rung(std::string_view name, std::string_view summary, std::string_view doc,
                std::span<const HeadDims> head_dims = kLowerHeadDims) {
  return {.info = {.name = std::string(name),
                   .summary = summary,
                   .device = DeviceKind::cuda,
                   .architectures = {90},
                   .dtypes = {DType::bf16},
                   .alignment_bytes = 16,
                   .doc = doc},
          .facts = {.head_dims = head_dims},
          .launch = built_without_plan<Attention, kLaunch>()};
}

// K1 keeps S (batch, heads, q_len, kv_len) in FP32. Saturates if its bytes overflow a size_t.
Plan plan_k1(const AttentionProblem& p, const DeviceInfo&) {
  const double bytes = 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                       static_cast<double>(p.q_len) * static_cast<double>(p.kv_len);
  constexpr auto kMax = std::numeric_limits<std::size_t>::max();
  return Plan(bytes < static_cast<double>(kMax) ? static_cast<std::size_t>(bytes) : kMax);
}

std::vector<Row> make_table() {
  Row k1 = ladder_rung<cuda::launch_k1>("k1", "naive: three launches, S in global memory",
                                        "docs/worklog/k1.md");
  k1.plan = plan_k1;
  return finished<Attention>({
      {.info = {.name = "cpu",
                .summary = "FlashAttention-2 tiling on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/architecture.md"},
       .facts = {.features = kAllFeatures},
       .launch = without_plan<Attention, cpu::attention>()},
      std::move(k1),
      ladder_rung<cuda::launch_k2>("k2", "tiled online softmax in one kernel, CUDA cores",
                                   "docs/worklog/k2.md"),
      ladder_rung<cuda::launch_k3_1>("k3_1", "K2 fed by TMA, one stage", "docs/worklog/k3.md"),
      ladder_rung<cuda::launch_k3_2>("k3_2", "K2 fed by TMA, two stages", "docs/worklog/k3.md"),
      ladder_rung<cuda::launch_k3_3>("k3_3", "K2 fed by TMA, five stages", "docs/worklog/k3.md"),
      ladder_rung<cuda::launch_k4_qk>("k4_qk", "QK^T on tensor cores (WGMMA), PV on CUDA cores",
                                      "docs/worklog/k4.md"),
      ladder_rung<cuda::launch_k4>("k4", "both products on tensor cores, P in registers",
                                   "docs/worklog/k4.md"),
      ladder_rung<cuda::launch_k5>("k5", "K4 with warps for loading and warps for computing",
                                   "docs/worklog/k5.md", kHeadDims),
      ladder_rung<cuda::launch_k6_pingpong>("k6_pingpong",
                                            "K5 with consumers that take turns on the tensor cores",
                                            "docs/worklog/k6.md", kHeadDims),
      ladder_rung<cuda::launch_k6_overlap>(
          "k6_overlap", "K5 with the softmax of a tile under the product of the last",
          "docs/worklog/k6.md", kHeadDims),
      ladder_rung<cuda::launch_k6>("k6", "both: ping-pong and overlap", "docs/worklog/k6.md",
                                   kHeadDims),
      cuda::flash_kernel(),
  });
}

// The argument by which a caller asks for a feature.
std::string_view given_for(Feature feature) {
  switch (feature) {
    case Feature::packed:
      return "cu_seqlens_q, cu_seqlens_k or seqused_k is given";
    case Feature::unnormalized:
      return "row_max and row_sum are given";
    default:
      return "is given";
  }
}

std::optional<Reason> launch_reason(const Row& kernel, const AttentionProblem& problem,
                                    int splits) {
  return launch_reason(kernel, problem, problem.packed_queries ? 1 : problem.batch, splits);
}

}  // namespace

bool AttentionProblem::asks_for(Feature feature) const {
  switch (feature) {
    case Feature::window:
      return window;
    case Feature::softcap:
      return softcap;
    case Feature::sinks:
      return sinks;
    case Feature::packed:
      return packed;
    case Feature::unnormalized:
      return unnormalized;
  }
  return false;
}

std::vector<Limit> limits_of(const AttentionFacts& facts) {
  return limits_of<AttentionFacts, Feature>(facts, kAllFeatures);
}

std::optional<Reason> facts_reason(const Row& kernel, const AttentionProblem& problem) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "q", problem.dtype)) {
    return reason;
  }
  if (auto reason = head_dim_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = feature_reason<Row, AttentionProblem, Feature>(kernel, problem, kAllFeatures,
                                                                   given_for)) {
    return reason;
  }
  return launch_reason(kernel, problem, 1);
}

std::optional<Reason> plan_reason(const Row& kernel, const AttentionProblem& problem,
                                  const Plan& plan) {
  return launch_reason(kernel, problem, plan.splits);
}

template <>
std::span<const Row> Table<Attention>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<Attention>;
template Selection<Attention> select_kernel(std::string_view, const AttentionProblem&,
                                            DeviceArgument);

}  // namespace tilewright
