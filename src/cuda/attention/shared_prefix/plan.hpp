// How a call with shared prefixes runs: in two passes, and a merge.
//
//   split_keys    from lengths and groups, in memory: what each pass reads; and q's rows in the
//                 order of the prefix pass
//   suffix pass   each sequence has its tokens, and its keys from the prefix's end on
//   prefix pass   a group's first sequence has the rows of all the group, and the prefix as its
//                 keys; the other sequences have no rows. Nothing is masked
//   merge         of the passes' un-normalised results, with the sinks
//
// In the prefix pass a row is a pair of a token and one of the query heads that share a KV head, so
// that tiles are full of them, and the keys of a prefix are read once for all rows of a tile. Few
// rows run in the decode kernel, many in the prefill kernel. The suffix pass runs in decode.
//
// With many rows the tensor cores are the prefix pass's limit, and memory is the suffix pass's. So
// they run beside each other: the suffix pass on half of the SMs, if each of its blocks fills one,
// and the prefix pass, whose blocks draw tiles, on the other half, and then on all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/prefill/plan.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {

// What lies where in the workspace, in bytes from its start, behind the 3 (B + 1) int32 of
// split_keys. T are the tokens of all sequences, G the query heads that share a KV head.
struct SharedPrefixWorkspace {
  std::size_t q;            // (Hk, T * G, D)
  std::size_t prefix_max;   // (splits, Hk, T * G) FP32: of the prefix pass
  std::size_t prefix_sum;   // likewise
  std::size_t prefix_o;     // (splits, Hk, T * G, Dv) FP32
  std::size_t suffix_max;   // (T, H) FP32: of the suffix pass
  std::size_t suffix_sum;   // likewise
  std::size_t suffix_o;     // (T, H, Dv) FP32
  std::size_t suffix_pass;  // the passes' workspaces
  std::size_t prefix_pass;
};

// What a Plan of such a call has.
struct SharedPrefixDetails {
  std::variant<DecodePlan, PrefillPlan> prefix;
  DecodePlan suffix;
  SharedPrefixWorkspace at;
};

// A plan, and the bytes of its workspace.
struct SharedPrefixPlan {
  SharedPrefixDetails details;
  std::size_t bytes;
};

// The new tokens of all sequences; packed: at most.
std::int64_t all_tokens(const AttentionWithKvCacheProblem& problem);

// What each pass asks of its kernel.
AttentionWithKvCacheProblem prefix_pass(const AttentionWithKvCacheProblem& problem);
AttentionWithKvCacheProblem suffix_pass(const AttentionWithKvCacheProblem& problem);

// The configs in which the passes run.
struct PassConfigs {
  bool prefills;  // does prefill run the prefix pass?
  int prefix;     // of prefill's configs, or else of decode's
  int suffix;
};

// The best ones of a problem without batch_invariant, whose head dims the kernel takes, on a GPU of
// `sms` SMs.
PassConfigs best_pass_configs(const AttentionWithKvCacheProblem& problem, int sms);

// The pieces into which the prefix pass splits its keys.
int prefix_splits(const SharedPrefixDetails& details);

// The plan on a GPU of `sms` SMs.
SharedPrefixPlan plan_shared_prefix(const AttentionWithKvCacheProblem& problem, int sms,
                                    const PassConfigs& configs);

}  // namespace tilewright::cuda
