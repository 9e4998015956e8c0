// What cases of attention share that depends on sizes and features alone.
#pragma once

#include <string>
#include <string_view>

#include "cli/attention_features.hpp"
#include "cli/case.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cli {

// Sets what follows from the features.
void set_features(const AttentionFeatures& features, AttentionProblem& problem);

// The `case` object of results lines. `dtype` is that of q.
Json sizes_to_json(const AttentionProblem& problem, std::string_view dtype,
                   const AttentionFeatures& features);

// "bf16 b4 q4096 kv4096 h16/16 d128 causal", "... d192/128 full window softcap sinks"
std::string size_label(const AttentionProblem& problem, std::string_view dtype,
                       const AttentionFeatures& features);

// The command and its options, the seed aside.
std::string size_arguments(const AttentionProblem& problem, std::string_view dtype,
                           const AttentionFeatures& features);

// 2 B H (D + Dv) for each pair of a query and a key.
double attention_flops(const AttentionProblem& problem, const AttentionFeatures& features);

// Those of q, k, v and o, where elements of o may have another size.
double attention_bytes(const AttentionProblem& problem, double element_bytes,
                       double output_element_bytes);

}  // namespace tilewright::cli
