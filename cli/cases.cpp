#include "cli/cases.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace tilewright::cli {

namespace {

double counted_pairs(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  const std::int64_t all = p.q_len + p.kv_len;
  const std::int64_t left = std::min(c.window.left.value_or(all), all);
  const std::int64_t right = p.causal ? 0 : std::min(c.window.right.value_or(all), all);
  double pairs = 0;
  for (std::int64_t i = 0; i < p.q_len; ++i) {
    const std::int64_t here = i + p.kv_len - p.q_len;
    const std::int64_t first = std::max<std::int64_t>(here - left, 0);
    const std::int64_t end = std::min(here + right + 1, p.kv_len);
    pairs += static_cast<double>(std::max<std::int64_t>(end - first, 0));
  }
  return pairs;
}

double nominal_pairs(const AttentionCase& c) {
  if (c.problem.window) {
    return counted_pairs(c);
  }
  const double all = static_cast<double>(c.problem.q_len) * static_cast<double>(c.problem.kv_len);
  return c.problem.causal ? all / 2 : all;
}

std::string head_dims_text(const AttentionProblem& p) {
  return p.head_dim == p.value_dim ? fmt::format("d{}", p.head_dim)
                                   : fmt::format("d{}/{}", p.head_dim, p.value_dim);
}

}  // namespace

double flops(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  return 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) * nominal_pairs(c) *
         static_cast<double>(p.head_dim + p.value_dim);
}

double compulsory_bytes(const AttentionProblem& p) {
  const double query_rows = static_cast<double>(p.q_len) * static_cast<double>(p.heads);
  const double key_rows = static_cast<double>(p.kv_len) * static_cast<double>(p.kv_heads);
  return (query_rows + key_rows) * static_cast<double>(p.batch) *
         static_cast<double>(p.head_dim + p.value_dim) * static_cast<double>(size_bytes(p.dtype));
}

std::string label(const AttentionProblem& p) {
  std::string text =
      fmt::format("{} b{} q{} kv{} h{}/{} {} {}", name(p.dtype), p.batch, p.q_len, p.kv_len,
                  p.heads, p.kv_heads, head_dims_text(p), p.causal ? "causal" : "full");
  for (const Feature feature : {Feature::window, Feature::softcap, Feature::sinks}) {
    if (p.asks_for(feature)) {
      text += fmt::format(" {}", name(feature));
    }
  }
  return text;
}

std::string arguments(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  std::string text = fmt::format(
      "--dtype {} --batch {} --seqlen {} --kv-seqlen {} --heads {} --kv-heads {} --headdim {} "
      "--v-headdim {} --{}causal --window-left {} --window-right {} --softcap {} --{}sinks "
      "--seed {}",
      name(p.dtype), p.batch, p.q_len, p.kv_len, p.heads, p.kv_heads, p.head_dim, p.value_dim,
      p.causal ? "" : "no-", c.window.left.value_or(kNoWindow), c.window.right.value_or(kNoWindow),
      c.softcap, p.sinks ? "" : "no-", c.seed);
  if (c.scale) {
    text += fmt::format(" --scale {}", *c.scale);
  }
  return text;
}

std::vector<AttentionProblem> problems(const Sweep& sweep) {
  std::vector<AttentionProblem> all;
  for (const std::int64_t head_dim : sweep.head_dims) {
    for (const bool causal : sweep.causal) {
      for (const std::int64_t seqlen : sweep.seqlens) {
        all.push_back({.dtype = sweep.dtype,
                       .batch = sweep.tokens / seqlen,
                       .q_len = seqlen,
                       .kv_len = seqlen,
                       .heads = sweep.hidden / head_dim,
                       .kv_heads = sweep.hidden / head_dim,
                       .head_dim = head_dim,
                       .value_dim = head_dim,
                       .causal = causal});
      }
    }
  }
  return all;
}

}  // namespace tilewright::cli
