// The table of attention_fp8's kernels, and what their facts ask of a problem.
#include <array>

#include "cpu/cpu_attention.hpp"
#include "ops/attention_fp8/kernels.hpp"
#include "ops/attention_table.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {

// The rungs of the ladder. Each queues its kernel on the current device; its arguments have been
// checked.
namespace cuda {
void launch_k7(const AttentionFp8Params& params, Stream stream);
void launch_k8_never(const AttentionFp8Params& params, Stream stream);
void launch_k8_8(const AttentionFp8Params& params, Stream stream);
void launch_k8_4(const AttentionFp8Params& params, Stream stream);
void launch_k8_2(const AttentionFp8Params& params, Stream stream);
void launch_k8(const AttentionFp8Params& params, Stream stream);
}  // namespace cuda

namespace {

using Row = Kernel<AttentionFp8>;

constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{256, 256}};
constexpr std::span<const HeadDims> kLowerHeadDims = std::span(kHeadDims).first<2>();
constexpr std::array kFeaturesOfK7 = {Fp8Feature::values_in_rows};
constexpr std::array kFeaturesOfK8 = {Fp8Feature::v_transposed, Fp8Feature::block_descales};
constexpr std::array kAllFeatures = {
    Fp8Feature::window,       Fp8Feature::softcap,        Fp8Feature::sinks,
    Fp8Feature::packed,       Fp8Feature::unnormalized,   Fp8Feature::values_in_rows,
    Fp8Feature::v_transposed, Fp8Feature::block_descales,
};

template <void (*kLaunch)(const AttentionFp8Params&, Stream)>
Row ladder_rung(std::string_view name, std::string_view summary, std::string_view doc,
                const AttentionFp8Facts& facts) {
  return {.info = {.name = std::string(name),
                   .summary = summary,
                   .device = DeviceKind::cuda,
                   .architectures = {90},
                   .dtypes = {DType::bf16},
                   .alignment_bytes = 16,
                   .doc = doc},
          .facts = facts,
          .launch = built_without_plan<AttentionFp8, kLaunch>()};
}

template <void (*kLaunch)(const AttentionFp8Params&, Stream)>
Row rung_of_k8(std::string_view name, std::string_view summary,
               std::span<const HeadDims> head_dims = kLowerHeadDims) {
  return ladder_rung<kLaunch>(name, summary, "docs/worklog/k8.md",
                              {.head_dims = head_dims, .features = kFeaturesOfK8});
}

std::vector<Row> make_table() {
  return finished<AttentionFp8>({
      {.info = {.name = "cpu",
                .summary = "FlashAttention-2 tiling on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp16, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/fp8.md"},
       .facts = {.features = kAllFeatures},
       .launch = without_plan<AttentionFp8, cpu::attention_fp8>()},
      ladder_rung<cuda::launch_k7>("k7", "K6 in FP8, V transposed on the chip",
                                   "docs/worklog/k7.md",
                                   {.head_dims = kHeadDims, .features = kFeaturesOfK7}),
      rung_of_k8<cuda::launch_k8_never>(
          "k8_never", "K7 with block descales and transposed V, no sums in FP32 registers",
          kHeadDims),
      rung_of_k8<cuda::launch_k8_8>("k8_8", "the same, sums promoted to FP32 every 8 key tiles"),
      rung_of_k8<cuda::launch_k8_4>("k8_4", "the same, sums promoted to FP32 every 4 key tiles"),
      rung_of_k8<cuda::launch_k8_2>("k8_2", "the same, sums promoted to FP32 every 2 key tiles"),
      rung_of_k8<cuda::launch_k8>("k8", "the same, sums promoted to FP32 after every key tile",
                                  kHeadDims),
      cuda::flash_fp8_kernel(),
  });
}

// The argument by which a caller asks for a feature.
std::string_view given_for(Fp8Feature feature) {
  switch (feature) {
    case Fp8Feature::packed:
      return "cu_seqlens_q, cu_seqlens_k or seqused_k is given";
    case Fp8Feature::unnormalized:
      return "row_max and row_sum are given";
    default:
      return "is given";
  }
}

std::optional<Reason> launch_reason(const Row& kernel, const AttentionFp8Problem& problem,
                                    int splits) {
  return launch_reason(kernel, problem, problem.packed_queries ? 1 : problem.batch, splits);
}

}  // namespace

bool AttentionFp8Problem::asks_for(Fp8Feature feature) const {
  switch (feature) {
    case Fp8Feature::window:
      return window;
    case Fp8Feature::softcap:
      return softcap;
    case Fp8Feature::sinks:
      return sinks;
    case Fp8Feature::packed:
      return packed;
    case Fp8Feature::unnormalized:
      return unnormalized;
    case Fp8Feature::values_in_rows:
      return !v_transposed;
    case Fp8Feature::v_transposed:
      return v_transposed;
    case Fp8Feature::block_descales:
      return descale_rows != 0;
  }
  return false;
}

std::vector<Limit> limits_of(const AttentionFp8Facts& facts) {
  return limits_of<AttentionFp8Facts, Fp8Feature>(facts, kAllFeatures);
}

std::optional<Reason> facts_reason(const Row& kernel, const AttentionFp8Problem& problem) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (!problem.unnormalized) {
    if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "o", problem.dtype)) {
      return reason;
    }
  }
  if (auto reason = head_dim_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = feature_reason<Row, AttentionFp8Problem, Fp8Feature>(kernel, problem,
                                                                         kAllFeatures, given_for)) {
    return reason;
  }
  return launch_reason(kernel, problem, 1);
}

std::optional<Reason> plan_reason(const Row& kernel, const AttentionFp8Problem& problem,
                                  const Plan& plan) {
  return launch_reason(kernel, problem, plan.splits);
}

template <>
std::span<const Row> Table<AttentionFp8>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<AttentionFp8>;
template Selection<AttentionFp8> select_kernel(std::string_view, const AttentionFp8Problem&,
                                               DeviceArgument);

}  // namespace tilewright
