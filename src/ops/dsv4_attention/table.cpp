// The table of dsv4_attention's kernels, and what their facts ask of a problem.
#include <array>

#include "cpu/cpu_dsv4_attention.hpp"
#include "ops/attention_table.hpp"
#include "ops/dsv4_attention/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright {
namespace {

using Problem = Dsv4AttentionProblem;
using Row = Kernel<Dsv4Attention>;

constexpr std::array kAllFormats = {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3,
                                    KvRowFormat::e2m1};
constexpr std::array kAllFeatures = {Dsv4Feature::range,        Dsv4Feature::list,
                                     Dsv4Feature::packed,       Dsv4Feature::fresh_rows,
                                     Dsv4Feature::sinks,        Dsv4Feature::unnormalized,
                                     Dsv4Feature::inverse_rope, Dsv4Feature::e4m3_output};
constexpr std::int64_t kMaxHeads = 128;

std::vector<Row> make_table() {
  return finished<Dsv4Attention>({
      {.info = {.name = "cpu",
                .summary = "tiles of all heads on all cores, FP32 arithmetic",
                .device = DeviceKind::cpu,
                .dtypes = {DType::fp32, DType::bf16},
                .alignment_bytes = 1,
                .doc = "docs/dsv4.md"},
       .facts = {.window_formats = kAllFormats,
                 .compressed_formats = kAllFormats,
                 .features = kAllFeatures},
       .launch = without_plan<Dsv4Attention, cpu::dsv4_attention>()},
      cuda::dsv4_decode_kernel(),
  });
}

// Sizes that no tensors have.
std::optional<Reason> size_reason(const Problem& problem) {
  return size_range_reason({{"batch", problem.batch},
                            {"q_len", problem.q_len},
                            {"heads", problem.heads},
                            {"window.pages", problem.window.pages},
                            {"window.page_size", problem.window.page_size},
                            {"window.most_keys", problem.window.most_keys},
                            {"compressed.pages", problem.compressed.pages},
                            {"compressed.page_size", problem.compressed.page_size},
                            {"compressed.most_keys", problem.compressed.most_keys}});
}

std::string texts_of(std::span<const int> numbers) {
  std::string all;
  for (const int number : numbers) {
    all += (all.empty() ? "" : ", ") + std::to_string(number);
  }
  return all;
}

std::string heads_text(const Dsv4AttentionFacts& facts) {
  return facts.heads.empty() ? "at most " + std::to_string(kMaxHeads) : texts_of(facts.heads);
}

std::optional<Reason> heads_reason(const Row& kernel, const Problem& problem) {
  const auto& heads = kernel.facts.heads;
  const bool takes = heads.empty() ? problem.heads <= kMaxHeads
                                   : std::ranges::find(heads, problem.heads) != heads.end();
  return takes ? std::nullopt
               : std::optional(takes_reason(kernel.info, "q",
                                            std::to_string(problem.heads) + " heads",
                                            heads_text(kernel.facts)));
}

std::optional<Reason> format_reason(const Row& kernel, const char* argument,
                                    const Dsv4ScopeProblem& scope,
                                    std::span<const KvRowFormat> takes) {
  if (scope.keys == Dsv4ScopeProblem::Keys::none ||
      std::ranges::find(takes, scope.format) != takes.end()) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, argument, "rows of " + std::string(name(scope.format)),
                      names_of(takes));
}

// What asks for a feature.
std::string_view given_for(Dsv4Feature feature) {
  switch (feature) {
    case Dsv4Feature::packed:
      return "cu_seqlens_q is given";
    case Dsv4Feature::unnormalized:
      return "row_max and row_sum are given";
    case Dsv4Feature::inverse_rope:
      return "rotary_cos is given";
    case Dsv4Feature::e4m3_output:
      return "o_scale is given";
    default:
      return "is given";
  }
}

}  // namespace

bool Dsv4AttentionProblem::asks_for(Dsv4Feature feature) const {
  using Keys = Dsv4ScopeProblem::Keys;
  switch (feature) {
    case Dsv4Feature::range:
      return window.keys == Keys::range || compressed.keys == Keys::range;
    case Dsv4Feature::list:
      return window.keys == Keys::list || compressed.keys == Keys::list;
    case Dsv4Feature::packed:
      return packed;
    case Dsv4Feature::fresh_rows:
      return fresh_rows;
    case Dsv4Feature::sinks:
      return sinks;
    case Dsv4Feature::unnormalized:
      return unnormalized;
    case Dsv4Feature::inverse_rope:
      return inverse_rope;
    case Dsv4Feature::e4m3_output:
      return e4m3_output;
  }
  return false;
}

std::vector<Limit> limits_of(const Dsv4AttentionFacts& facts) {
  std::vector<Limit> limits = {{"heads", heads_text(facts)},
                               {"window.rows", names_of(facts.window_formats)},
                               {"compressed.rows", names_of(facts.compressed_formats)}};
  for (const Dsv4Feature feature : kAllFeatures) {
    if (std::ranges::find(facts.features, feature) == facts.features.end()) {
      limits.push_back({std::string(name(feature)), "none"});
    }
  }
  return limits;
}

std::optional<Reason> facts_reason(const Row& kernel, const Problem& problem) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel.info, kernel.info.dtypes, "q", problem.dtype)) {
    return reason;
  }
  if (auto reason = heads_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason =
          format_reason(kernel, "window.rows", problem.window, kernel.facts.window_formats)) {
    return reason;
  }
  if (auto reason = format_reason(kernel, "compressed.rows", problem.compressed,
                                  kernel.facts.compressed_formats)) {
    return reason;
  }
  if (auto reason =
          feature_reason<Row, Problem, Dsv4Feature>(kernel, problem, kAllFeatures, given_for)) {
    return reason;
  }
  return launch_reason(kernel, problem, problem.packed ? 1 : problem.batch, 1);
}

std::optional<Reason> plan_reason(const Row& kernel, const Problem& problem, const Plan& plan) {
  return launch_reason(kernel, problem, problem.packed ? 1 : problem.batch, plan.splits);
}

template <>
std::span<const Row> Table<Dsv4Attention>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<Dsv4Attention>;
template Selection<Dsv4Attention> select_kernel(std::string_view, const Dsv4AttentionProblem&,
                                                DeviceArgument);

}  // namespace tilewright
