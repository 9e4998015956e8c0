// The table of attention_with_kvcache's kernels, and what their facts ask of a problem.
#include <array>

#include "cpu/cpu_attention.hpp"
#include "ops/attention_table.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {
namespace {

using Problem = AttentionWithKvCacheProblem;
using Row = Kernel<AttentionWithKvCache>;

constexpr std::array kAllFeatures = {
    KvCacheFeature::window,        KvCacheFeature::softcap,      KvCacheFeature::sinks,
    KvCacheFeature::packed,        KvCacheFeature::unnormalized, KvCacheFeature::left_padding,
    KvCacheFeature::shared_prefix, KvCacheFeature::new_rows,     KvCacheFeature::tree_mask,
    KvCacheFeature::e4m3_cache,    KvCacheFeature::row_descales};

std::vector<Row> make_table() {
  return finished<AttentionWithKvCache>({
      {.info = {.name = "cpu",
                .summary = "FlashAttention-2 tiling on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::fp16, DType::bf16, DType::e4m3},
                .alignment_bytes = 1,
                .doc = "docs/architecture.md"},
       .facts = {.features = kAllFeatures},
       .launch = without_plan<AttentionWithKvCache, cpu::attention_with_kvcache>()},
      cuda::decode_kernel(),
      cuda::prefill_kernel(),
  });
}

// Sizes that no tensors have, or that contradict each other.
std::optional<Reason> size_reason(const Problem& problem) {
  if (auto reason =
          size_range_reason({{"batch", problem.batch},
                             {"q_len", problem.q_len},
                             {"cache_rows", problem.cache_rows},
                             {"page_size", problem.page_size == 0 ? 1 : problem.page_size},
                             {"capacity", problem.capacity},
                             {"heads", problem.heads},
                             {"kv_heads", problem.kv_heads},
                             {"head_dim", problem.head_dim},
                             {"value_dim", value_dim_of(problem)}})) {
    return reason;
  }
  if (problem.heads % problem.kv_heads != 0) {
    return Reason{ErrorCode::invalid_argument, "kv_heads",
                  "is " + std::to_string(problem.kv_heads) + ", must divide heads " +
                      std::to_string(problem.heads)};
  }
  if (problem.page_size != 0 && problem.capacity % problem.page_size != 0) {
    return Reason{ErrorCode::invalid_argument, "capacity",
                  "is " + std::to_string(problem.capacity) + ", must be a multiple of page_size " +
                      std::to_string(problem.page_size)};
  }
  return std::nullopt;
}

std::optional<Reason> cache_dtype_reason(const Problem& problem) {
  if (problem.cache_dtype == problem.dtype || problem.cache_dtype == DType::e4m3) {
    return std::nullopt;
  }
  return Reason{ErrorCode::invalid_argument, "k_cache",
                "has dtype " + std::string(name(problem.cache_dtype)) + ", must be " +
                    std::string(name(problem.dtype)) + ", the dtype of q" +
                    (problem.dtype == DType::e4m3 ? "" : ", or e4m3")};
}

// What asks for a feature.
std::string_view given_for(KvCacheFeature feature) {
  switch (feature) {
    case KvCacheFeature::packed:
      return "cu_seqlens_q is given";
    case KvCacheFeature::unnormalized:
      return "row_max and row_sum are given";
    case KvCacheFeature::new_rows:
      return "k and v are given";
    case KvCacheFeature::e4m3_cache:
      return "k_cache has dtype e4m3";
    case KvCacheFeature::row_descales:
      return "k_descale or v_descale has one for each row";
    default:
      return "is given";
  }
}

std::optional<Reason> launch_reason(const Row& kernel, const Problem& problem, int splits) {
  return launch_reason(kernel, problem, problem.packed ? 1 : problem.batch, splits);
}

}  // namespace

bool AttentionWithKvCacheProblem::asks_for(KvCacheFeature feature) const {
  switch (feature) {
    case KvCacheFeature::window:
      return window;
    case KvCacheFeature::softcap:
      return softcap;
    case KvCacheFeature::sinks:
      return sinks;
    case KvCacheFeature::packed:
      return packed;
    case KvCacheFeature::unnormalized:
      return unnormalized;
    case KvCacheFeature::left_padding:
      return left_padding;
    case KvCacheFeature::shared_prefix:
      return shared_prefix;
    case KvCacheFeature::new_rows:
      return new_rows;
    case KvCacheFeature::tree_mask:
      return tree_mask;
    case KvCacheFeature::e4m3_cache:
      return cache_dtype == DType::e4m3;
    case KvCacheFeature::row_descales:
      return row_descales;
  }
  return false;
}

std::vector<Limit> limits_of(const AttentionWithKvCacheFacts& facts) {
  return limits_of<AttentionWithKvCacheFacts, KvCacheFeature>(facts, kAllFeatures);
}

std::optional<Reason> facts_reason(const Row& kernel, const Problem& problem) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (auto reason = cache_dtype_reason(problem)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "q", problem.dtype)) {
    return reason;
  }
  if (auto reason = head_dim_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason =
          feature_reason<Row, Problem, KvCacheFeature>(kernel, problem, kAllFeatures, given_for)) {
    return reason;
  }
  return launch_reason(kernel, problem, 1);
}

std::optional<Reason> plan_reason(const Row& kernel, const Problem& problem, const Plan& plan) {
  return launch_reason(kernel, problem, plan.splits);
}

bool suits(const Row& kernel, const Problem& problem) {
  return kernel.info.name != "prefill" || cuda::is_for_prefill(problem);
}

template <>
std::span<const Row> Table<AttentionWithKvCache>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<AttentionWithKvCache>;
template Selection<AttentionWithKvCache> select_kernel(std::string_view,
                                                       const AttentionWithKvCacheProblem&,
                                                       DeviceArgument);

}  // namespace tilewright
