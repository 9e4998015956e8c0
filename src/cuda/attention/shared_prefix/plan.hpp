// How a call with shared prefixes runs: in two passes of the decode kernel, and a merge.
//
//   split_keys    from lengths and groups, in memory: what each pass reads
//   prefix pass   a group's first sequence has the tokens of all the group, and the prefix as its
//                 keys; the other sequences have no tokens. Nothing is masked
//   suffix pass   each sequence has its tokens, and its keys from the prefix's end on
//   merge         of the passes' un-normalised results, with the sinks
//
// So the keys of a prefix are read once for all tokens of the group that fit into a row tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/attention/decode/plan.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {

// What lies where in the workspace, in bytes from its start, behind the 3 (B + 1) int32 of
// split_keys. T are the tokens of all sequences.
struct SharedPrefixWorkspace {
  std::size_t q;        // (T, H, D), where q's tokens do not lie at one stride
  std::size_t row_max;  // (2, T, H) FP32: of the prefix pass and of the suffix pass
  std::size_t row_sum;  // likewise
  std::size_t o;        // (2, T, H, Dv) FP32
  std::size_t pass;     // the workspace of the pass that runs
  std::size_t bytes;
};

// What a Plan of such a call has.
struct SharedPrefixDetails {
  DecodePlan prefix;
  DecodePlan suffix;
  SharedPrefixWorkspace at;
};

// The new tokens of all sequences; packed: at most.
std::int64_t all_tokens(const AttentionWithKvCacheProblem& problem);

// What each pass asks of the decode kernel.
AttentionWithKvCacheProblem prefix_pass(const AttentionWithKvCacheProblem& problem);
AttentionWithKvCacheProblem suffix_pass(const AttentionWithKvCacheProblem& problem);

// The configs in which the passes run.
struct PassConfigs {
  int prefix;
  int suffix;
};

// The best ones of a problem without batch_invariant, whose head dims the kernel takes, on a GPU of
// `sms` SMs.
PassConfigs best_pass_configs(const AttentionWithKvCacheProblem& problem, int sms);

// The plan on a GPU of `sms` SMs.
SharedPrefixDetails plan_shared_prefix(const AttentionWithKvCacheProblem& problem, int sms,
                                       const PassConfigs& configs);

}  // namespace tilewright::cuda
