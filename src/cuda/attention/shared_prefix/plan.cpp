#include "cuda/attention/shared_prefix/plan.hpp"

#include <algorithm>

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

// A pass without what happens before it and after it.
Problem pass_of(Problem p) {
  p.shared_prefix = false;
  p.new_rows = false;
  p.sinks = false;
  p.unnormalized = true;
  return p;
}

}  // namespace

std::int64_t all_tokens(const Problem& p) { return p.packed ? p.q_len : p.batch * p.q_len; }

Problem prefix_pass(const Problem& p) {
  Problem pass = pass_of(p);
  pass.packed = true;
  pass.q_len = all_tokens(p);
  pass.causal = false;
  pass.tree_mask = false;
  return pass;
}

Problem suffix_pass(const Problem& p) {
  Problem pass = pass_of(p);
  pass.left_padding = true;
  return pass;
}

// All tokens may be one group's.
PassConfigs best_pass_configs(const Problem& p, int sms) {
  Problem prefix = prefix_pass(p);
  prefix.batch = 1;
  return {.prefix = best_decode_config(prefix, sms).value(),
          .suffix = best_decode_config(suffix_pass(p), sms).value()};
}

SharedPrefixDetails plan_shared_prefix(const Problem& p, int sms, const PassConfigs& configs) {
  const DecodeDetails prefix = plan_decode(prefix_pass(p), sms, configs.prefix);
  const DecodeDetails suffix = plan_decode(suffix_pass(p), sms, configs.suffix);
  SharedPrefixDetails details{.prefix = prefix.plan, .suffix = suffix.plan, .at = {}};
  SharedPrefixWorkspace& at = details.at;
  const auto place = [&](std::int64_t bytes) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t start = at.bytes;
    at.bytes += (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  constexpr std::int64_t kFloat_bytes = sizeof(float);
  const std::int64_t rows = all_tokens(p) * p.heads;
  const std::int64_t value_dim = p.value_dim > 0 ? p.value_dim : p.head_dim;
  const bool may_need_q = !p.packed && p.batch > 1 && p.q_len > 1;
  place(3 * (p.batch + 1) * static_cast<std::int64_t>(sizeof(int)));
  at.q = place(may_need_q ? rows * p.head_dim * static_cast<std::int64_t>(size_bytes(p.dtype)) : 0);
  at.row_max = place(2 * rows * kFloat_bytes);
  at.row_sum = place(2 * rows * kFloat_bytes);
  at.o = place(2 * rows * value_dim * kFloat_bytes);
  at.pass = at.bytes;
  at.bytes += std::max(prefix.at.bytes, suffix.at.bytes);
  return details;
}

}  // namespace tilewright::cuda
