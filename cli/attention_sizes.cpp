#include "cli/attention_sizes.hpp"

#include <fmt/core.h>

namespace tilewright::cli {

void set_features(const AttentionFeatures& features, AttentionProblem& problem) {
  const Window window = features.window();
  problem.causal = features.causal;
  problem.window = window.left || window.right;
  problem.softcap = features.softcap > 0;
  problem.sinks = features.sinks;
}

Json sizes_to_json(const AttentionProblem& p, std::string_view dtype,
                   const AttentionFeatures& features) {
  Json object = {{"dtype", dtype},         {"batch", p.batch},     {"q_len", p.q_len},
                 {"kv_len", p.kv_len},     {"heads", p.heads},     {"kv_heads", p.kv_heads},
                 {"head_dim", p.head_dim}, {"v_dim", p.value_dim}, {"causal", p.causal}};
  add_features(features, object);
  return object;
}

std::string size_label(const AttentionProblem& p, std::string_view dtype,
                       const AttentionFeatures& features) {
  const std::string head_dims = p.head_dim == p.value_dim
                                    ? fmt::format("d{}", p.head_dim)
                                    : fmt::format("d{}/{}", p.head_dim, p.value_dim);
  return fmt::format("{} b{} q{} kv{} h{}/{} {} {}", dtype, p.batch, p.q_len, p.kv_len, p.heads,
                     p.kv_heads, head_dims, feature_label(features));
}

std::string size_arguments(const AttentionProblem& p, std::string_view dtype,
                           const AttentionFeatures& features) {
  return fmt::format(
      "attention --dtype {} --batch {} --seqlen {} --kv-seqlen {} --heads {} --kv-heads {} "
      "--headdim {} --v-headdim {} {}",
      dtype, p.batch, p.q_len, p.kv_len, p.heads, p.kv_heads, p.head_dim, p.value_dim,
      feature_arguments(features));
}

double attention_flops(const AttentionProblem& p, const AttentionFeatures& features) {
  return 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
         attention_pairs(p.q_len, p.kv_len, features) *
         static_cast<double>(p.head_dim + p.value_dim);
}

double attention_bytes(const AttentionProblem& p, double element_bytes,
                       double output_element_bytes) {
  const double query_rows = static_cast<double>(p.q_len) * static_cast<double>(p.heads);
  const double key_rows = static_cast<double>(p.kv_len) * static_cast<double>(p.kv_heads);
  const auto head_dim = static_cast<double>(p.head_dim);
  const auto value_dim = static_cast<double>(p.value_dim);
  return static_cast<double>(p.batch) *
         ((query_rows * head_dim + key_rows * (head_dim + value_dim)) * element_bytes +
          query_rows * value_dim * output_element_bytes);
}

}  // namespace tilewright::cli
