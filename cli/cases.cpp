#include "cli/cases.hpp"

#include <fmt/core.h>

namespace tilewright::cli {

double flops(const AttentionProblem& p) {
  const double full = 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                      static_cast<double>(p.q_len) * static_cast<double>(p.kv_len) *
                      static_cast<double>(p.head_dim);
  return p.causal ? full / 2 : full;
}

double compulsory_bytes(const AttentionProblem& p) {
  const double query_rows = static_cast<double>(p.q_len) * static_cast<double>(p.heads);
  const double key_rows = static_cast<double>(p.kv_len) * static_cast<double>(p.kv_heads);
  return 2 * (query_rows + key_rows) * static_cast<double>(p.batch) *
         static_cast<double>(p.head_dim) * static_cast<double>(size_bytes(p.dtype));
}

std::string label(const AttentionProblem& p) {
  return fmt::format("{} b{} q{} kv{} h{}/{} d{} {}", name(p.dtype), p.batch, p.q_len, p.kv_len,
                     p.heads, p.kv_heads, p.head_dim, p.causal ? "causal" : "full");
}

std::string arguments(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  std::string text = fmt::format(
      "--dtype {} --batch {} --seqlen {} --kv-seqlen {} --heads {} --kv-heads {} --headdim {} "
      "--{}causal --seed {}",
      name(p.dtype), p.batch, p.q_len, p.kv_len, p.heads, p.kv_heads, p.head_dim,
      p.causal ? "" : "no-", c.seed);
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
                       .causal = causal});
      }
    }
  }
  return all;
}

}  // namespace tilewright::cli
