// The kernel prefill in the table of kernels, with a variant for each of its configs. Under its own
// name it leaves sequences of few tokens to decode; a variant runs sequences of any length.
#include <array>
#include <utility>

#include "cuda/attention/prefill/launch.hpp"
#include "cuda/attention/prefill/plan.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<AttentionWithKvCache>;
using Problem = AttentionWithKvCacheProblem;

constexpr auto kHeadDims = [] {
  std::array<HeadDims, kPrefillConfigCount> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {kPrefillConfigs[i].head_dim, kPrefillConfigs[i].value_dim};
  }
  return all;
}();
constexpr std::array kFeatures = {KvCacheFeature::window,       KvCacheFeature::softcap,
                                  KvCacheFeature::sinks,        KvCacheFeature::packed,
                                  KvCacheFeature::unnormalized, KvCacheFeature::left_padding,
                                  KvCacheFeature::new_rows,     KvCacheFeature::e4m3_cache};

Plan plan_of(const PrefillDetails& details) {
  Plan plan(details.bytes, details);
  plan.variant = details.plan.config;
  plan.splits = details.plan.splits;
  return plan;
}

Plan plan_best(const Problem& problem, const DeviceInfo& device) {
  return plan_of(plan_chunks(problem, device.multiprocessors));
}

template <int kConfig>
Plan plan_config(const Problem& problem, const DeviceInfo& device) {
  return plan_of(plan_prefill(problem, device.multiprocessors, kConfig));
}

std::optional<Reason> refuses_pages(const Row& kernel, const Problem& problem, const DeviceInfo&) {
  if (!prefill_loads(problem)) {
    return takes_reason(kernel.info, "k_cache", "page_size " + std::to_string(problem.page_size),
                        "multiples of " + std::to_string(prefill_page_rows(problem)));
  }
  return std::nullopt;
}

std::optional<Reason> refuses_best(const Row& kernel, const Problem& problem,
                                   const DeviceInfo& device) {
  if (may_have_chunks(problem)) {
    if (auto reason = refuses_pages(kernel, problem, device)) {
      return reason;
    }
  }
  const Row& decode = *find_kernel<AttentionWithKvCache>("decode");
  return may_have_few_tokens(problem) ? decode.refuses(decode, problem, device) : std::nullopt;
}

// The variant for config kConfig: `prefill`, narrowed to what that config can run.
template <int kConfig>
Row variant_in(Row prefill) {
  prefill.info.summary = "prefill in this config, of few tokens as well";
  prefill.facts.head_dims = std::span(kHeadDims).subspan(kConfig, 1);
  prefill.refuses = refuses_pages;
  prefill.plan = plan_config<kConfig>;
  return prefill;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& prefill, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<AttentionWithKvCache>(prefill.info.name,
                                                 {variant_in<kConfigs>(prefill)...});
}

}  // namespace

bool is_for_prefill(const Problem& problem) { return may_have_chunks(problem); }

Row prefill_kernel() {
  Row prefill{
      .info = {.name = "prefill",
               .summary = "chunks of prompts over caches; sequences of few tokens by decode",
               .device = DeviceKind::cuda,
               .architectures = {90},
               .dtypes = {DType::bf16, DType::fp16, DType::e4m3},
               .alignment_bytes = 16,
               .doc = "docs/worklog/prefill.md"},
      .facts = {.head_dims = kHeadDims, .features = kFeatures},
      .refuses = refuses_best,
      .plan = plan_best,
      .launch = built<launch_prefill>()};
  static const auto& variants =
      kept(variants_of(prefill, std::make_integer_sequence<int, kPrefillConfigCount>{}));
  prefill.variants = variants;
  return prefill;
}

}  // namespace tilewright::cuda
