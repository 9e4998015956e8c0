// The table of attention_fp8's kernels, and what their facts ask of a problem.
#include <array>

#include "cpu/cpu_attention.hpp"
#include "ops/attention_fp8/kernels.hpp"
#include "ops/attention_table.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {
namespace {

using Row = Kernel<AttentionFp8>;

constexpr std::array kAllFeatures = {
    Fp8Feature::window,       Fp8Feature::softcap,        Fp8Feature::sinks,
    Fp8Feature::packed,       Fp8Feature::unnormalized,   Fp8Feature::values_in_rows,
    Fp8Feature::v_transposed, Fp8Feature::block_descales,
};

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
