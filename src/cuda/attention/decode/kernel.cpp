// The kernel decode in the table of kernels, with a variant for each of its configs.
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "cuda/attention/decode/launch.hpp"
#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/shared_prefix/plan.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<AttentionWithKvCache>;
using Problem = AttentionWithKvCacheProblem;

constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{96, 96}, HeadDims{128, 128},
                                  HeadDims{192, 128}, HeadDims{256, 256}};
// Not every config has the last two.
constexpr std::array kFeatures = {
    KvCacheFeature::window,     KvCacheFeature::softcap,      KvCacheFeature::sinks,
    KvCacheFeature::packed,     KvCacheFeature::unnormalized, KvCacheFeature::left_padding,
    KvCacheFeature::new_rows,   KvCacheFeature::tree_mask,    KvCacheFeature::shared_prefix,
    KvCacheFeature::e4m3_cache, KvCacheFeature::row_descales};

constexpr auto kHeadDimsOfConfigs = [] {
  std::array<HeadDims, kDecodeConfigCount> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {kDecodeConfigs[i].head_dim, kDecodeConfigs[i].value_dim};
  }
  return all;
}();

Plan plan_in(const Problem& problem, const DeviceInfo& device, int config) {
  const DecodeDetails details = plan_decode(problem, device.multiprocessors, config);
  Plan plan(details.at.bytes, details);
  plan.variant = config;
  return plan;
}

// A call with shared prefixes counts as of its suffix pass's variant.
Plan plan_in(const Problem& problem, const DeviceInfo& device, const PassConfigs& configs) {
  const SharedPrefixPlan planned = plan_shared_prefix(problem, device.multiprocessors, configs);
  Plan plan(planned.bytes, planned.details);
  plan.variant = configs.suffix;
  return plan;
}

Plan plan_best(const Problem& problem, const DeviceInfo& device) {
  return problem.shared_prefix
             ? plan_in(problem, device, best_pass_configs(problem, device.multiprocessors))
             : plan_in(problem, device,
                       best_decode_config(problem, device.multiprocessors).value());
}

template <int kConfig>
Plan plan_config(const Problem& problem, const DeviceInfo& device) {
  return problem.shared_prefix ? plan_in(problem, device, PassConfigs{false, kConfig, kConfig})
                               : plan_in(problem, device, kConfig);
}

std::optional<Reason> refuses_in(const Row& kernel, const Problem& problem, int config) {
  if (kDecodeConfigs[config].swaps && !loads_boxes(problem)) {
    return takes_reason(kernel.info, "block_table",
                        "pages of " + std::to_string(problem.page_size) + " rows",
                        "pages of 16 or 32 rows, or of a multiple of 64");
  }
  constexpr std::int64_t kMostUnits = std::numeric_limits<int>::max();
  if (most_units(problem, kDecodeConfigs[config]) > kMostUnits) {
    return takes_reason(kernel.info, "q", "a batch with more than 2^31 tiles of keys", "fewer");
  }
  return std::nullopt;
}

// The same of a call with shared prefixes, whose passes run in these configs.
std::optional<Reason> refuses_shared_prefix(const Row& kernel, const Problem& problem,
                                            const PassConfigs& configs) {
  if (problem.batch_invariant) {
    return Reason{ErrorCode::unsupported, "batch_invariant",
                  "is true, kernel " + kernel.info.name +
                      " splits the keys of a prefix by the tokens that share it"};
  }
  if (problem.dtype == DType::e4m3) {  // a tile has sequences of different descales
    return takes_reason(kernel.info, "q", "dtype e4m3 and shared prefixes", "bf16 or fp16 there");
  }
  constexpr std::int64_t kMostRows = std::numeric_limits<int>::max();
  if (all_tokens(problem) > kMostRows / problem.heads) {
    return takes_reason(kernel.info, "q", "2^31 or more rows and shared prefixes", "fewer");
  }
  if (!configs.prefills) {
    if (auto reason = refuses_in(kernel, prefix_pass(problem), configs.prefix)) {
      return reason;
    }
  }
  return refuses_in(kernel, suffix_pass(problem), configs.suffix);
}

std::optional<Reason> refuses_best(const Row& kernel, const Problem& problem,
                                   const DeviceInfo& device) {
  return problem.shared_prefix
             ? refuses_shared_prefix(kernel, problem,
                                     best_pass_configs(problem, device.multiprocessors))
             : refuses_in(kernel, problem,
                          best_decode_config(problem, device.multiprocessors).value());
}

template <int kConfig>
std::optional<Reason> refuses_config(const Row& kernel, const Problem& problem, const DeviceInfo&) {
  return problem.shared_prefix ? refuses_shared_prefix(kernel, problem, {false, kConfig, kConfig})
                               : refuses_in(kernel, problem, kConfig);
}

// The variant for config kConfig: `decode`, narrowed to what that config can run.
template <int kConfig>
Row variant_in(Row decode) {
  decode.info.summary = "decode in this config";
  decode.facts.head_dims = std::span(kHeadDimsOfConfigs).subspan(kConfig, 1);
  if (!takes_e4m3(kDecodeConfigs[kConfig])) {
    std::erase(decode.info.dtypes, DType::e4m3);
    decode.facts.features = std::span(kFeatures).first(kFeatures.size() - 2);
  }
  decode.refuses = refuses_config<kConfig>;
  decode.plan = plan_config<kConfig>;
  return decode;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& decode, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<AttentionWithKvCache>(decode.info.name,
                                                 {variant_in<kConfigs>(decode)...});
}

}  // namespace

Row decode_kernel() {
  Row decode{.info = {.name = "decode",
                      .summary = "few queries over long caches: keys are shared out evenly",
                      .device = DeviceKind::cuda,
                      .architectures = {90},
                      .dtypes = {DType::bf16, DType::fp16, DType::e4m3},
                      .alignment_bytes = 16,
                      .doc = "docs/worklog/decode.md"},
             .facts = {.head_dims = kHeadDims, .features = kFeatures},
             .refuses = refuses_best,
             .plan = plan_best,
             .launch = built<launch_decode>()};
  static const auto& variants =
      kept(variants_of(decode, std::make_integer_sequence<int, kDecodeConfigCount>{}));
  decode.variants = variants;
  return decode;
}

}  // namespace tilewright::cuda
