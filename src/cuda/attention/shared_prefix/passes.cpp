#include "cuda/attention/shared_prefix/passes.hpp"

namespace tilewright::cuda {
namespace {

using Params = AttentionWithKvCacheParams;

// Memory in the workspace.
template <typename T>
T* at(const Params& p, std::size_t offset) {
  return static_cast<T*>(static_cast<void*>(static_cast<char*>(p.workspace) + offset));
}

// What a pass does not do: new rows are in the caches, and sinks come with the merge.
Params pass_of(const Params& p, std::size_t workspace) {
  Params pass = p;
  pass.lse = nullptr;
  pass.sinks = {};
  pass.added = {};
  pass.prefixes = {};
  pass.workspace = at<void>(p, workspace);
  return pass;
}

// The strides of rows of `columns` columns where those of statistics are these.
OuterStrides row_strides(const OuterStrides& statistic, std::int64_t columns) {
  return {.batch = statistic.batch * columns,
          .seq = statistic.seq * columns,
          .head = statistic.head * columns};
}

// Un-normalised results.
void set_results(Params& pass, const OuterStrides& statistic, float* max, float* sum, float* o) {
  pass.o = o;
  pass.o_stride = row_strides(statistic, pass.value_dim);
  pass.statistics = {.max = max, .sum = sum, .max_stride = statistic, .sum_stride = statistic};
}

// All rows of a KV head are packed, in their order.
Params prefix_pass(const Params& p, const SharedPrefixWorkspace& places,
                   const SplitLengths& lengths, int splits) {
  const int rows = all_tokens(p) * (p.heads / p.kv_heads);
  const std::int64_t of_split = splits > 1 ? std::int64_t{p.kv_heads} * rows : 0;
  const OuterStrides statistic{.batch = of_split, .seq = 1, .head = rows};
  Params pass = pass_of(p, places.prefix_pass);
  pass.q = at<void>(p, places.q);
  pass.q_stride = row_strides({.batch = 0, .seq = 1, .head = rows}, p.head_dim);
  set_results(pass, statistic, at<float>(p, places.prefix_max), at<float>(p, places.prefix_sum),
              at<float>(p, places.prefix_o));
  pass.q_len = rows;
  pass.heads = p.kv_heads;
  pass.packed_q.cu_seqlens = lengths.rows;
  pass.rows.cache_seqlens = lengths.shared;
  pass.causal = false;
  pass.tree = {};
  return pass;
}

Params suffix_pass(const Params& p, const SharedPrefixWorkspace& places,
                   const SplitLengths& lengths) {
  const std::int64_t of_sequence = is_packed(p) ? 0 : std::int64_t{p.q_len} * p.heads;
  Params pass = pass_of(p, places.suffix_pass);
  set_results(pass, {.batch = of_sequence, .seq = p.heads, .head = 1},
              at<float>(p, places.suffix_max), at<float>(p, places.suffix_sum),
              at<float>(p, places.suffix_o));
  pass.rows.cache_seqlens = lengths.keys;
  pass.rows.leftpad = lengths.shared;
  return pass;
}

}  // namespace

SharedPrefixCalls calls_of(const Params& p, const SharedPrefixWorkspace& places,
                           int prefix_splits) {
  const int count = p.batch + 1;
  int* const numbers = at<int>(p, 0);
  const SplitLengths lengths{
      .rows = numbers, .shared = numbers + count, .keys = numbers + 2 * count};
  SharedPrefixCalls calls{.lengths = lengths,
                          .prefix_q = at<void>(p, places.q),
                          .prefix = prefix_pass(p, places, lengths, prefix_splits),
                          .suffix = suffix_pass(p, places, lengths),
                          .merged = p,
                          .rows_end = nullptr};
  if (is_packed(p)) {
    calls.merged.batch = 1;
    calls.rows_end = p.packed_q.cu_seqlens + p.batch;
  }
  return calls;
}

}  // namespace tilewright::cuda
