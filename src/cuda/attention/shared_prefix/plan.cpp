#include "cuda/attention/shared_prefix/plan.hpp"

#include <algorithm>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/expected_lengths.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

// Prefill's schedule counts 2^28 rows at most, each split's by themselves.
constexpr std::int64_t kMostPrefillRows = std::int64_t{1} << 28;
constexpr std::int64_t kMostSplits = 31;  // the merge takes one part more

// Of a row tile of decode.
constexpr std::int64_t kMostDecodeRows = 64;

// A pass without what happens before it and after it.
Problem pass_of(Problem p) {
  p.shared_prefix = false;
  p.new_rows = false;
  p.sinks = false;
  p.unnormalized = true;
  return p;
}

// The rows that a group has of one KV head, if all groups have as many.
std::int64_t rows_of_group(const Problem& p) {
  return ceil_div(all_tokens(p) * (p.heads / p.kv_heads), p.prefix_groups);
}

// Does prefill run the prefix pass? Its tiles have 128 rows, or 64 over E4M3 caches with D = 256,
// and decode's at most 64: more rows than that would have decode read the keys again.
bool prefills(const Problem& p) {
  const bool has_many_rows = rows_of_group(p) > kMostDecodeRows;
  return has_many_rows && !p.row_descales && prefill_config(p) && prefill_loads(p) &&
         all_tokens(p) * p.heads <= kMostPrefillRows / kMostSplits;
}

// Do the passes run beside each other? Blocks of which an SM holds two would not leave SMs free.
bool runs_beside(const PassConfigs& configs) {
  return configs.prefills && kDecodeConfigs[configs.suffix].blocks_per_sm == 1;
}

// Keys are split if SMs would idle otherwise: those that are left to the prefix pass or, of a long
// prefix, all, since it may go on when the suffix pass has ended.
int splits_of_prefixes(const Problem& p, int sms, int sms_left, int br) {
  constexpr std::int64_t kLongSplit = 4096;
  const std::int64_t tiles =
      p.prefix_groups * p.kv_heads * ceil_div(rows_of_group(p), std::int64_t{br});
  const std::int64_t long_splits = std::min(sms / tiles, longest_kv_len(p) / kLongSplit);
  const std::int64_t most = std::min(longest_kv_len(p) / kMinPrefillSplit, kMostSplits);
  const std::int64_t splits = std::min(std::max(sms_left / tiles, long_splits), most);
  return static_cast<int>(std::max<std::int64_t>(splits, 1));
}

}  // namespace

std::int64_t all_tokens(const Problem& p) { return p.packed ? p.q_len : p.batch * p.q_len; }

Problem prefix_pass(const Problem& p) {
  Problem pass = pass_of(p);
  pass.packed = true;
  pass.q_len = all_tokens(p) * (p.heads / p.kv_heads);
  pass.max_seqlen_q = 0;
  pass.heads = p.kv_heads;
  pass.causal = false;
  pass.tree_mask = false;
  return pass;
}

Problem suffix_pass(const Problem& p) {
  Problem pass = pass_of(p);
  pass.left_padding = true;
  return pass;
}

// All rows may be one group's.
PassConfigs best_pass_configs(const Problem& p, int sms) {
  const int suffix = best_decode_config(suffix_pass(p), sms).value();
  if (prefills(p)) {
    return {.prefills = true, .prefix = prefill_config(p).value(), .suffix = suffix};
  }
  Problem prefix = prefix_pass(p);
  prefix.batch = 1;
  return {.prefills = false, .prefix = best_decode_config(prefix, sms).value(), .suffix = suffix};
}

int prefix_splits(const SharedPrefixDetails& details) {
  const auto* const prefill = std::get_if<PrefillPlan>(&details.prefix);
  return prefill != nullptr ? prefill->splits : 1;
}

SharedPrefixPlan plan_shared_prefix(const Problem& p, int sms, const PassConfigs& configs) {
  const bool is_beside = runs_beside(configs);
  const int suffix_sms = is_beside ? sms / 2 : sms;
  DecodeDetails suffix = plan_decode(suffix_pass(p), suffix_sms, configs.suffix);
  suffix.plan.next_may_join = is_beside;
  SharedPrefixDetails details{.prefix = {}, .suffix = suffix.plan, .at = {}};
  std::size_t prefix_bytes = 0;
  if (configs.prefills) {
    PrefillDetails prefix = plan_prefill(prefix_pass(p), sms, configs.prefix);
    const int sms_left = is_beside ? sms - suffix_sms : sms;
    prefix.plan.splits = splits_of_prefixes(p, sms, sms_left, kPrefillConfigs[configs.prefix].br());
    prefix.plan.joins = is_beside;
    prefix.plan.sequences = static_cast<int>(p.prefix_groups);  // a group's first has its rows
    details.prefix = prefix.plan;
    prefix_bytes = kPrefillDecodeAt;  // the ticket; what splits leave has a place of its own
  } else {
    const DecodeDetails prefix = plan_decode(prefix_pass(p), sms, configs.prefix);
    details.prefix = prefix.plan;
    prefix_bytes = prefix.at.bytes;
  }

  std::size_t end = 0;
  const auto place = [&](std::int64_t bytes) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t start = end;
    end += (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  constexpr std::int64_t kFloat_bytes = sizeof(float);
  const std::int64_t rows = all_tokens(p) * p.heads;
  const std::int64_t prefix_rows = rows * prefix_splits(details);
  const std::int64_t value_dim = p.value_dim > 0 ? p.value_dim : p.head_dim;
  place(3 * (p.batch + 1) * static_cast<std::int64_t>(sizeof(int)));
  SharedPrefixWorkspace& at = details.at;
  at.q = place(rows * p.head_dim * static_cast<std::int64_t>(size_bytes(p.dtype)));
  at.prefix_max = place(prefix_rows * kFloat_bytes);
  at.prefix_sum = place(prefix_rows * kFloat_bytes);
  at.prefix_o = place(prefix_rows * value_dim * kFloat_bytes);
  at.suffix_max = place(rows * kFloat_bytes);
  at.suffix_sum = place(rows * kFloat_bytes);
  at.suffix_o = place(rows * value_dim * kFloat_bytes);
  at.suffix_pass = place(static_cast<std::int64_t>(suffix.at.bytes));
  at.prefix_pass = end;
  return {.details = details, .bytes = end + prefix_bytes};
}

}  // namespace tilewright::cuda
